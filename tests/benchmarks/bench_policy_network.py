"""Time and memory of the policy network: one forward pass, one gradient, compiling both.

Run: PYTHONPATH=. python tests/benchmarks/bench_policy_network.py [OPS ...]

Each size runs in a process of its own, so that peak memory is its own; the default
network, 36 chips. Seconds of CPU beside those of the clock, for machines that others use.
Asserts that outputs and gradients are finite. Target: forward 15 / 67 / 430 / 2,300 ms and
update 0.08 / 0.3 / 1.6 / 9.4 s of CPU at 512 / 2,048 / 10,240 / 51,200 ops.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

SIZES = (512, 2_048, 10_240, 51_200)
REPEATS = 3
COLUMNS = "| ops | bucket | features ms | compile s | forward ms (CPU) | compile s | update ms (CPU) | GB |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sizes", nargs="*", type=int, default=SIZES)
    parser.add_argument("--one", action="store_true", help="one size, in this process")
    options = parser.parse_args()
    if options.one:
        print(row(options.sizes[0]), flush=True)
        return
    print(COLUMNS)
    print("|" + "---:|" * 8, flush=True)
    for size in options.sizes:
        subprocess.run([sys.executable, __file__, "--one", str(size)], check=True)


def row(num_ops: int) -> str:
    import jax
    import jax.numpy as jnp
    from chains import branchy_graph

    from go_opt.agents.inputs.features import graph_features
    from go_opt.agents.inputs.padding import pad, smallest_bucket
    from go_opt.agents.networks import PolicyConfig, initial_parameters, policy_outputs
    from go_opt.env import load_target

    def loss(parameters, padded):
        """Of every output something, as a policy gradient would want."""
        output = policy_outputs(config, parameters, padded)
        log_p = jax.nn.log_softmax(output.placement_logits)[:, 0]
        of_ops = log_p + output.cut_score + output.schedule_key + output.fusion_key
        return jnp.where(padded.op_mask, of_ops, 0.0).sum() + output.exploration_log_std.sum()

    graph, target, config = branchy_graph(num_ops), load_target("mcm-6x6"), PolicyConfig()
    graph_features(branchy_graph(100), target)  # compiles the solver's kernels
    features_s, _, features = best_s(lambda: graph_features(graph, target))
    bucket = smallest_bucket(features)
    arguments = (initial_parameters(config, 0), pad(features, bucket))
    forward = jax.jit(lambda *of: policy_outputs(config, *of))
    compile_forward_s, forward_s, forward_cpu_s = timed(forward, arguments)
    compile_update_s, update_s, update_cpu_s = timed(jax.jit(jax.grad(loss)), arguments)
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return (
        f"| {num_ops:5d} | {bucket.ops:6d} | {features_s * 1e3:11.1f} "
        f"| {compile_forward_s:9.1f} | {forward_s * 1e3:8.0f} ({forward_cpu_s * 1e3:5.0f}) "
        f"| {compile_update_s:9.1f} | {update_s * 1e3:7.0f} ({update_cpu_s * 1e3:5.0f}) | {peak_gb:7.1f} |"
    )


def timed(program: Any, arguments: tuple[Any, ...]) -> tuple[float, float, float]:
    """Seconds to compile, and least seconds by the clock and of CPU to run."""
    import jax
    import jax.numpy as jnp

    start = time.perf_counter()
    compiled = program.lower(*arguments).compile()
    compile_s = time.perf_counter() - start
    run_s, cpu_s, result = best_s(lambda: jax.block_until_ready(compiled(*arguments)))
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(result))
    return compile_s, run_s, cpu_s


def best_s(run: Callable[[], Any]) -> tuple[float, float, Any]:
    """Least seconds by the clock, least seconds of CPU, and what the last run returned."""
    clock_s, cpu_s = [], []
    for _ in range(REPEATS):
        clock, cpu = time.perf_counter(), time.process_time()
        result = run()
        clock_s.append(time.perf_counter() - clock)
        cpu_s.append(time.process_time() - cpu)
    return min(clock_s), min(cpu_s), result


if __name__ == "__main__":
    main()
