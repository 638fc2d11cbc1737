"""The analytical model: interval, latency, makespan, memory."""
