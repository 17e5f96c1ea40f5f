"""What is learnt from data: a task is a record of a few pure functions (`task`); the usual ones are in `usual`.

>>> from bifl.tasks import task
>>> task.names()[:3]
['classification', 'regression', 'multilabel']
"""

from bifl.tasks import usual
from bifl.tasks.task import Sums, Targets, Task, as_found, class_per_position, positions, row_per_position, task

__all__ = ["Sums", "Targets", "Task", "as_found", "class_per_position", "positions", "row_per_position", "task", "usual"]
