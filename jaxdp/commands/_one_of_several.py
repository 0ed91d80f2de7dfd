"""The options of a command that several processes can run together, and what follows from them."""

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import tyro

from .._errors import UsageError

if TYPE_CHECKING:
    from .._meeting import Meeting

Distributed: TypeAlias = Annotated[
    bool,
    tyro.conf.arg(
        help="be one of several processes that do the work together, all started with the same command; they find each other "
        "where JAX knows the cluster (SLURM, Open MPI, GKE, Cloud TPU), and else by the next three"
    ),
]
Coordinator: TypeAlias = Annotated[
    str | None,
    tyro.conf.arg(help="HOST:PORT at which process 0 waits for the others; implies --distributed"),
]
NumProcesses: TypeAlias = Annotated[int | None, tyro.conf.arg(help="with --coordinator: how many processes there are")]
ProcessId: TypeAlias = Annotated[
    int | None,
    tyro.conf.arg(
        help="with --coordinator: which one this is, counted from 0; process 0 writes the folder and shows how far it is"
    ),
]


class OneOfSeveral:
    """For options with these four fields."""

    distributed: Any
    coordinator: Any
    num_processes: Any
    process_id: Any

    @property
    def of_several(self) -> bool:
        """Whether this is one of several processes."""
        return self.distributed or self.coordinator is not None

    @property
    def meeting(self) -> "Meeting":
        """Where the processes find each other."""
        from .._meeting import Meeting

        return Meeting(self.coordinator, self.num_processes, self.process_id)

    @property
    def of_several_typed(self) -> tuple[str, ...]:
        """The same as it is typed."""
        if self.coordinator is None:
            return ("--distributed",) if self.distributed else ()
        given = {"coordinator": self.coordinator, "num-processes": self.num_processes, "process-id": self.process_id}
        return tuple(f"--{name} {value}" for name, value in given.items())

    def check_processes(self) -> None:
        """Refuse processes that can't find each other by what is given."""
        given = (self.coordinator, self.num_processes, self.process_id)
        if given != (None, None, None) and None in given:
            raise UsageError(
                f"--coordinator={self.coordinator} --num-processes={self.num_processes} --process-id={self.process_id}: give all "
                "three, or --distributed alone where JAX knows the cluster"
            )
        if self.coordinator is None:
            return
        host, _, port = self.coordinator.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise UsageError(f"--coordinator={self.coordinator} must be HOST:PORT, such as 10.0.0.1:1234")
        if not 0 <= self.process_id < self.num_processes:
            raise UsageError(
                f"--process-id={self.process_id} must be one of --num-processes={self.num_processes}, counted from 0"
            )
