"""Importers: models of other tools as :class:`go_opt.model.graph.Graph`, a module for each tool."""
