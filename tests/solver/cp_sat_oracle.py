"""The placement problem as an integer program, for graphs too large to enumerate."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from go_opt.env import CostTables
from go_opt.env.model.makespan import workspace_of
from go_opt.model.graph import ACTIVATION, INPUT, NO_PRODUCER, Graph

UNIT_S = 1e-10  # seconds are rounded to these


def cp_sat_optimum_s(graph: Graph, tables: CostTables) -> float:
    """The least interval of one kernel per op on alike chips, tensors passing at no cost."""
    cp_model = pytest.importorskip("ortools.sat.python.cp_model")
    chips = range(tables.num_chips)

    def units(seconds: float) -> int:
        return round(seconds / UNIT_S)

    model = cp_model.CpModel()
    op_s = tables.kernel_floor_s()[0]
    longest = units(4.0 * float(op_s.sum()) + 1.0)
    # is_done[op][d]: the op is on chip d or before it.
    is_done = [[model.new_bool_var("") for _ in chips] for _ in range(graph.num_ops)]
    for done in is_done:
        model.add(done[-1] == 1)
        for d in chips[1:]:
            model.add_implication(done[d - 1], done[d])
    for source, reader in zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), strict=True):
        for d in chips:
            model.add_implication(is_done[reader][d], is_done[source][d])

    def on(op: int, d: int):
        return is_done[op][d] - (is_done[op][d - 1] if d else 0)

    compute = [[units(float(op_s[op])) * on(op, d) for op in range(graph.num_ops)] for d in chips]
    link: list[list] = [[] for _ in chips]
    host: list[list] = [[] for _ in chips]
    total_in = total_out = 0
    for k in range(graph.num_tensors):
        size, producer = float(tables.tensor_bytes[k]), int(tables.tensor_producer[k])
        readers = tables.reader_op[tables.reader_ptr[k] : tables.reader_ptr[k + 1]].tolist()
        if tables.tensor_kind[k] == INPUT:
            total_in += size
            for d in chips:
                is_read = model.new_bool_var("")
                for op in readers:
                    model.add(is_read >= on(op, d))
                host[d].append(units(size * tables.host_in_s_per_byte) * is_read)
        if tables.tensor_kind[k] != ACTIVATION or producer == NO_PRODUCER:
            continue
        if tables.tensor_is_output[k]:
            total_out += size
            for d in chips:
                host[d].append(units(size * tables.host_out_s_per_byte) * on(producer, d))
        for d in chips[:-1]:
            crosses = model.new_bool_var("")
            for op in readers:
                model.add(crosses >= is_done[producer][d] - is_done[op][d])
            link[d].append(units(size * float(tables.link_s_per_byte[0])) * crosses)
    interval = model.new_int_var(0, longest, "")
    for d in chips:
        if tables.overlap:
            model.add(interval >= sum(compute[d]))
            model.add(interval >= sum(link[d]))
        else:
            entering = link[d - 1] if d else []
            model.add(interval >= sum(compute[d]) + sum(link[d]) + sum(entering) + sum(host[d]))
    if tables.overlap:
        model.add(
            interval
            >= units(max(total_in * tables.host_in_s_per_byte, total_out * tables.host_out_s_per_byte))
        )
    model.minimize(interval)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = 60.0
    status = solver.solve(model)
    assert status == cp_model.OPTIMAL
    return float(np.round(solver.objective_value)) * UNIT_S


def cp_sat_makespan_s(graph: Graph, tables: CostTables) -> tuple[float, bool]:
    """The least makespan of one kernel per op on alike chips linked all to all, and whether it is proven.

    No inputs and outputs. Tensors may wait on their chip, and cross links one after the other, which
    the environment lets none do.
    """
    cp_model = pytest.importorskip("ortools.sat.python.cp_model")
    pairs, chips = workspace_of(tables).pairs, range(tables.num_chips)
    setup, s_per_byte = round(float(pairs["setup_s"][1]) / UNIT_S), float(pairs["s_per_byte"][1])
    work = np.round(tables.kernel_floor_s()[0] / UNIT_S).astype(int).tolist()
    size = np.round(tables.tensor_bytes * s_per_byte / UNIT_S).astype(int).tolist()
    latest = sum(work) + sum(size) + setup * len(size)
    model = cp_model.CpModel()
    start = [model.new_int_var(0, latest, "") for _ in work]
    is_on = [[model.new_bool_var("") for _ in chips] for _ in work]
    makespan = model.new_int_var(0, latest, "")
    for op, seconds in enumerate(work):
        model.add_exactly_one(is_on[op])
        model.add(makespan >= start[op] + seconds)
    for chip in chips:
        model.add_no_overlap(
            model.new_optional_fixed_size_interval_var(start[op], work[op], is_on[op][chip], "")
            for op in range(len(work))
        )
    for a, b in permutations(chips, 2):
        link = []
        for tensor, producer in enumerate(tables.tensor_producer.tolist()):
            leaves, is_sent = model.new_int_var(0, latest, ""), model.new_bool_var("")
            link.append(model.new_optional_fixed_size_interval_var(leaves, size[tensor], is_sent, ""))
            ends = start[producer] + work[producer]
            model.add(leaves >= ends)
            for reader in tables.reader_op[tables.reader_ptr[tensor] : tables.reader_ptr[tensor + 1]]:
                crosses = is_on[producer][a], is_on[reader][b]
                model.add(start[reader] >= ends)
                model.add(is_sent == 1).only_enforce_if(*crosses)
                model.add(start[reader] >= leaves + size[tensor] + setup).only_enforce_if(*crosses)
        model.add_no_overlap(link)
    model.minimize(makespan)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers, solver.parameters.max_time_in_seconds = 1, 60.0
    is_proven = solver.solve(model) == cp_model.OPTIMAL
    return solver.value(makespan) * UNIT_S, is_proven
