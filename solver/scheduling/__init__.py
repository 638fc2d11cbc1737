"""Schedules for the makespan on targets without static constraints."""

from go_opt.solver.scheduling.annealing import ScheduleAnnealing as ScheduleAnnealing
from go_opt.solver.scheduling.list_scheduling import earliest_finish_placement as earliest_finish_placement
from go_opt.solver.scheduling.list_scheduling import list_scheduling as list_scheduling
from go_opt.solver.scheduling.ranks import upward_ranks as upward_ranks
