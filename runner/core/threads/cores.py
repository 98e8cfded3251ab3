"""How many threads compute best on the processors of a machine. Pure."""

from collections.abc import Collection, Iterable, Mapping

# A core that can do less than this of what the fastest can holds the others up at every barrier.
CAPACITY_SHARE_MIN = 0.5


def parse_cpus(text: str) -> frozenset[int]:
    """Read the kernel's "0-3,8".

    Raises:
        ValueError: it is something else.
    """
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def fast_cpus(cpus: Collection[int], *, performance: Collection[int], capacities: Mapping[int, int]) -> frozenset[int]:
    """Those that are of the fast kind. `performance`: as the kernel names them; else what each can do decides."""
    named = frozenset(cpus) & frozenset(performance)
    if named:
        return named
    most = max((capacities.get(cpu, 0) for cpu in cpus), default=0)
    return frozenset(cpu for cpu in cpus if capacities.get(cpu, most) >= CAPACITY_SHARE_MIN * most)


def count_cores(cpus: Iterable[int], *, siblings: Mapping[int, str], quotas: Iterable[float]) -> int:
    """Hardware threads of one core count once, and no more than processor time is granted; at least one.

    `quotas` are in processors: beyond one of them all threads stand still until the next period.
    """
    cores = len({siblings.get(cpu, str(cpu)) for cpu in cpus})
    return max(1, min([cores, *(int(quota) for quota in quotas)]))
