"""Which tests pytest-xdist runs in one process: those of a file, and all of Spark's."""

from pathlib import PurePath

from xdist.scheduler import LoadScopeScheduling


class Scheduling(LoadScopeScheduling):
    """Gives a process whole files, in the order in which they were collected."""

    def _split_scope(self, nodeid):
        path = PurePath(nodeid.partition("::")[0])
        # one session, and one Java machine, for the folder
        return str(path.parent if path.parent.name == "spark" else path)
