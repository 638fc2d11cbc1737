"""Runs and exports plans: cuts models into stages. Needs the extra ``run``."""
