"""Importers: models of other tools as :class:`go_opt.graph.Graph`."""
