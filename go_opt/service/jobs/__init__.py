"""Training as long-running jobs: the store, the scheduler, the runners and the job process."""
