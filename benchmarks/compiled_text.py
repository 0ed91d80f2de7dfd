"""What a compiled program is made of, read from XLA's text of it: its operations, how often each runs, who asked for it.

A TPU's compiler writes its own estimate of each operation's cycles into the text; a GPU's writes none. The body of a loop runs as
often as the text says, or as the loop's counter goes up to the constant that it is compared with; where neither can be read,
its cycles are counted once and the loop is counted as unknown.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_OPERATION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_CALLED = re.compile(r"(?:calls|body|condition|to_apply|branch_computations)=(\{[^}]*\}|%?[\w.\-]+)")
_NAME = re.compile(r"%([\w.\-]+)")
_TABLE_ROW = re.compile(r"^(\d+) (.*)$")
_NUMBER = re.compile(r"(\w+)=(\d+)")
_NO_KERNELS = frozenset(
    ("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "while", "conditional", "call", "after-all")
)
_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_FULL_FLOAT32 = (
    "operand_precision={high",
    '"operand_precision":["HIGH',
    "algorithm=dot_f32_f32_f32",
    "ALG_DOT_F32_F32_F32",
)
_SHAPE = re.compile(r"\b(pred|[suf]\d+|bf16|c\d+)\[([\d,]*)\]")
_BYTES = {"pred": 1, "bf16": 2}
_PRODUCT = re.compile(r" (dot|convolution)\(|custom_call_target=\"__(cublas|cudnn\$conv)")


class Operation(NamedTuple):
    """A line of a computation: its name, its primitive, what it is applied to and what stands after that."""

    name: str
    shape: str
    kind: str
    rest: str


class Running(NamedTuple):
    """An operation that the program runs: how often, the function that asked for it, and whether a loop around it is unknown."""

    operation: Operation
    times: int
    source: str
    is_unknown_loop: bool
    in_unknown_loop: bool

    @property
    def cycles(self) -> int:
        """By the compiler's estimate, all runs together; 0 where it makes none."""
        found = _CYCLES.search(self.operation.rest)
        return self.times * int(found[1]) if found else 0


class Collective(NamedTuple):
    """An operation between devices.

    Attributes:
        kind: such as "all-reduce".
        shape: of what it gives, as the text has it.
        arrays: the bytes of each array of one run: of the whole that is added up, gathered, scattered or passed on, with padding.
        times: how often it runs.
        source: the function that asked for it.
        in_unknown_loop: whether it runs so often for each turn of a loop that can't be counted.
    """

    kind: str
    shape: str
    arrays: tuple[int, ...]
    times: int
    source: str
    in_unknown_loop: bool

    @property
    def bytes(self) -> int:
        """Of one run, on each device."""
        return sum(self.arrays)


@dataclass
class CompiledText:
    """A compiled program."""

    text: str
    computations: dict[str, list[Operation]] = field(default_factory=dict)
    entry: str = ""

    def __post_init__(self) -> None:
        inside = ""
        for line in self.text.splitlines():
            if begins := _COMPUTATION.match(line):
                inside = begins[2]
                self.computations[inside] = []
                if begins[1]:
                    self.entry = inside
            elif inside and (found := _OPERATION.match(line)):
                self.computations[inside].append(Operation(*found.group(2, 3, 4, 5)))

    @cached_property
    def running(self) -> list[Running]:
        """All that runs, in loops and branches too; what is fused into another operation is a part of that."""
        return list(self._runs(self.entry, 1, within=False))

    @property
    def unknown_loops(self) -> int:
        """Loops of which it can't be read how often they run."""
        return sum(each.is_unknown_loop for each in self.running)

    @property
    def cycles(self) -> int:
        """By the compiler's estimate."""
        return sum(each.cycles for each in self.running)

    @property
    def kernels(self) -> int:
        """Operations that are launched: all but those that only name or pass on what there is."""
        return sum(each.times for each in self.running if each.operation.kind not in _NO_KERNELS)

    @property
    def logarithms(self) -> int:
        """Operations that take logarithms, wherever they are fused into: one for each array of noise, each time it is drawn."""
        return sum(operation.kind == "log" for inside in self.computations.values() for operation in inside)

    @cached_property
    def collectives(self) -> list[Collective]:
        """Operations between devices, in their order; one that is begun here and done there, or spread over fusions, is one."""
        found: dict[tuple[str, str], Collective] = {}
        for each in self.running:
            for operation, kind in self._between_devices(each.operation):
                chain = re.search(r'chain_id="(\d+)"', operation.rest)  # of one that several fusions carry out
                one = ("chain", chain[1]) if chain else (each.operation.name, operation.name)
                shape = re.sub(r"\{[^}]*\}|/\*.*?\*/", "", operation.shape)
                own, arrays = self.source(operation), self._arrays_between_devices(operation, kind)
                source = own if own != operation.kind else each.source
                found.setdefault(one, Collective(kind, shape, arrays, each.times, source, each.in_unknown_loop))
        return list(found.values())

    def _between_devices(self, operation: Operation) -> Iterator[tuple[Operation, str]]:
        """The collective that an operation is or begins, with its kind, or those that are fused into it."""
        kind = operation.kind.removesuffix("-start")
        if kind in _COLLECTIVES:
            yield operation, kind
        elif kind in ("fusion", "async"):
            for name in _called(operation):
                for inner, own in (
                    pair for each in self.computations.get(name, ()) for pair in self._between_devices(each)
                ):
                    yield inner, "reduce-scatter" if name.startswith("all-reduce-scatter") else own

    def _arrays_between_devices(self, operation: Operation, kind: str) -> tuple[int, ...]:
        """The bytes of what is gathered, and else of what goes in."""
        arguments = _NAME.findall(operation.rest.split("), ")[0])
        given = [entries * width for name in arguments for entries, width in _sizes(self._shapes.get(name, ""))]
        if kind != "all-gather":
            return tuple(given)
        made = [entries * width for entries, width in _sizes(operation.shape)]
        return tuple(made[len(given) :] if operation.kind.endswith("-start") else made)

    @cached_property
    def _shapes(self) -> dict[str, str]:
        return {each.name: each.shape for operations in self.computations.values() for each in operations}

    @property
    def products(self) -> tuple[int, int]:
        """Matrix products and convolutions in the whole text, and those of them that are held to full float32."""
        lines = [line for line in self.text.splitlines() if _PRODUCT.search(line)]
        return len(lines), sum(any(mark in line for mark in _FULL_FLOAT32) for line in lines)

    def costliest(self, number: int) -> list[Running]:
        """The operations of most cycles."""
        return sorted((each for each in self.running if each.cycles), key=lambda each: -each.cycles)[:number]

    def roofline(self, bytes_per_second: float, operations_per_second: tuple[float, float]) -> dict[str, float]:
        """Bytes, operations, and the least time that a device takes for both: for each kernel the longer of the two.

        Args:
            bytes_per_second: of its memory; each kernel reads its operands and writes its results once.
            operations_per_second: in full float32, and with tensor cores.
        """
        total = {"bytes": 0.0, "operations": 0.0, "operations_in_full_float32": 0.0, "roofline_seconds": 0.0}
        shapes = self._shapes
        for each in self.running:
            operation = each.operation
            if operation.kind in _NO_KERNELS:
                continue
            arguments = operation.rest.split("), ")[0]
            moved = [operation.shape, *(shapes.get(name, "") for name in _NAME.findall(arguments))]
            size = each.times * sum(entries * width for shape in moved for entries, width in _sizes(shape))
            products = [operation, *(inner for name in _called(operation) for inner in self.computations.get(name, ()))]
            full = tensor = 0.0
            for product in products:
                amount = each.times * _operations(product, shapes)
                if any(mark in product.rest for mark in _FULL_FLOAT32):
                    full += amount
                else:
                    tensor += amount
            arithmetic = full / operations_per_second[0] + tensor / operations_per_second[1]
            total["bytes"] += size
            total["operations"] += full + tensor
            total["operations_in_full_float32"] += full
            total["roofline_seconds"] += max(size / bytes_per_second, arithmetic)
        return total

    def _runs(self, computation: str, times: int, *, within: bool) -> Iterator[Running]:
        operations = {each.name: each for each in self.computations[computation]}
        for each in operations.values():
            trips = self._trips(each, operations) if each.kind == "while" else 1
            if each.kind in ("while", "conditional", "call", "async-start"):
                for name in _called(each):
                    runs = times * (1 if trips is None else trips)
                    yield from self._runs(name, runs, within=within or trips is None)
            yield Running(each, times, self.source(each), trips is None, within)

    def _trips(self, loop: Operation, around: dict[str, Operation]) -> int | None:
        """How often a loop's body runs."""
        if known := re.search(r'known_trip_count":\{"n":"(\d+)"', loop.rest):
            return int(known[1])
        condition = re.search(r"condition=%?([\w.\-]+)", loop.rest)
        if not condition:
            return None
        inside = {each.name: each for each in self.computations[condition[1]]}
        root = next((each for each in inside.values() if each.kind == "compare"), None)
        if root is None or "direction=LT" not in root.rest:
            return None
        counter, limit = (inside.get(name) for name in _NAME.findall(root.rest)[:2])
        index = re.search(r"index=(\d+)", counter.rest) if counter else None
        begin = around.get(_NAME.findall(loop.rest)[0])
        if not index or not begin or begin.kind != "tuple":
            return None
        first = _constant(around.get(_NAME.findall(begin.rest)[int(index[1])]), around)
        last = _constant(limit, inside)
        return None if first is None or last is None else max(last - first, 0)

    def source(self, operation: Operation) -> str:
        """The innermost function of Python that asked for it, or JAX's own name of it."""
        if frame := re.search(r"stack_frame_id=(\d+)", operation.rest):
            return self._frames.get(int(frame[1]), "")
        name = re.search(r'op_name="([^"]*)"', operation.rest)
        return name[1] if name else operation.kind

    @cached_property
    def _frames(self) -> dict[int, str]:
        tables: dict[str, dict[int, str]] = {}
        own: dict[int, str] = {}
        for line in self.text.splitlines():
            if line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
                own = tables[line] = {}
            elif row := _TABLE_ROW.match(line):
                own[int(row[1])] = row[2]
            elif line.startswith(("%", "ENTRY")):
                break
        found = {}
        for number, frame in tables.get("StackFrames", {}).items():
            location = dict(
                _NUMBER.findall(tables["FileLocations"][int(dict(_NUMBER.findall(frame))["file_location_id"])])
            )
            file = tables["FileNames"][int(location["file_name_id"])].strip('"').rsplit("/", 1)[-1]
            name = tables["FunctionNames"][int(location["function_name_id"])].strip('"').replace(".<locals>", "")
            found[number] = f"{file}:{location['line']} {name}"
        return found


def _called(operation: Operation) -> list[str]:
    """The computations that an operation names."""
    return [name for names in _CALLED.findall(operation.rest) for name in re.findall(r"[\w.\-]+", names)]


def _operations(product: Operation, shapes: dict[str, str]) -> float:
    """Floating-point operations of a matrix product or a convolution; 0 of anything else."""
    if not _PRODUCT.search(f" {product.kind}({product.rest}"):
        return 0.0
    left, right, *_ = [*(_sizes(shapes.get(name, "")) for name in _NAME.findall(product.rest)[:2]), [], []]
    out = _sizes(product.shape)
    if not (left and right and out):
        return 0.0
    sizes = [part[0][0] for part in (left, right, out)]
    if product.kind == "convolution" or "cudnn$conv" in product.rest:  # each output entry meets a filter's own entries
        labels = re.search(r"dim_labels=\w+_(\w+)->", product.rest)
        dimensions = _SHAPE.findall(shapes[_NAME.findall(product.rest)[1]])[0][1].split(",")
        outputs = int(dimensions[labels[1].index("o")]) if labels else 1
        return 2.0 * sizes[2] * sizes[1] / max(outputs, 1)
    batch = re.search(r'lhs_batch_dim(?:s=\{|ensions":\[)([^\]}]*)', product.rest)
    dimensions = _SHAPE.findall(shapes[_NAME.findall(product.rest)[0]])[0][1].split(",")
    shared = math.prod(int(dimensions[int(axis)]) for axis in re.findall(r"\d+", batch[1])) if batch else 1
    return 2.0 * math.sqrt(math.prod(sizes) / max(shared, 1))


def _constant(operation: Operation | None, among: dict[str, Operation]) -> int | None:
    """The whole number that an operation is, through copies."""
    while operation is not None and operation.kind in ("copy", "bitcast"):
        operation = among.get(next(iter(_NAME.findall(operation.rest)), ""))
    if operation is None or operation.kind != "constant":
        return None
    number = re.match(r"(-?\d+)\)", operation.rest)
    return int(number[1]) if number else None


def _sizes(shape: str) -> list[tuple[int, int]]:
    """The entries of each array of a shape, and the bytes of one."""
    found = []
    for kind, dimensions in _SHAPE.findall(shape):
        entries = math.prod(map(int, dimensions.split(","))) if dimensions else 1
        found.append((entries, _BYTES.get(kind) or int(re.sub(r"\D", "", kind)) // 8))
    return found
