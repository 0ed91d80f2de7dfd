"""What is read from a compiled program's text, on a program of a few lines: a product, a loop of five steps, one unknown loop."""

import pytest
from compiled_text import CompiledText

TEXT = """HloModule jit_step, is_scheduled=true

FileNames
1 "/somewhere/model.py"

FunctionNames
1 "Model.<locals>.apply"

FileLocations
1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=1 end_column=9}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

%body (at.1: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %at.1 = (s32[], f32[8,4]{1,0}) parameter(0)
  %one.1 = f32[8,4]{1,0} fusion(%at.1), kind=kLoop, calls=%inner, backend_config={"estimated_cycles":"10"}
  ROOT %next.1 = (s32[], f32[8,4]{1,0}) tuple(%at.1, %one.1)
}

%condition (at.2: (s32[], f32[8,4])) -> pred[] {
  %limit = s32[] constant(7)
  %at.2 = (s32[], f32[8,4]{1,0}) parameter(0)
  %counter = s32[] get-tuple-element(%at.2), index=0
  ROOT %less = pred[] compare(%counter, %limit), direction=LT
}

%elsewhere (at.3: (s32[], f32[8,4])) -> pred[] {
  %at.3 = (s32[], f32[8,4]{1,0}) parameter(0)
  ROOT %asked = pred[] get-tuple-element(%at.3), index=0
}

ENTRY %main (x: f32[8,16], w: f32[16,4]) -> f32[8,4] {
  %x = f32[8,16]{1,0} parameter(0)
  %w = f32[16,4]{1,0} parameter(1)
  %two = s32[] constant(2)
  %begin = s32[] copy(%two)
  %product = f32[8,4]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={stack_frame_id=1}, CYCLES
  %exact = f32[8,4]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, operand_precision={highest,highest}
  %start = (s32[], f32[8,4]{1,0}) tuple(%begin, %product)
  %known = (s32[], f32[8,4]{1,0}) while(%start), condition=%condition, body=%body
  %unknown = (s32[], f32[8,4]{1,0}) while(%start), condition=%elsewhere, body=%body
  %sum = f32[8,4]{1,0} all-reduce(%product), to_apply=%add
  ROOT %out = f32[8,4]{1,0} get-tuple-element(%known), index=1
}
""".replace("CYCLES", 'backend_config={"estimated_cycles":"100"}')


def test_loops_are_counted_as_often_as_they_run_and_unknown_ones_once() -> None:
    program = CompiledText(TEXT)
    assert program.cycles == 100 + 5 * 10 + 10
    assert program.unknown_loops == 1
    assert len(program.collectives) == 1
    assert (
        program.kernels == 1 + 2 + 2 * 5 + 1 + 1
    )  # the copy, two products, bodies and comparisons, the sum over devices
    assert [(each.cycles, each.source) for each in program.costliest(1)] == [(100, "model.py:7 Model.apply")]


def test_a_loop_says_itself_how_often_it_runs_where_the_compiler_knows() -> None:
    known = TEXT.replace(
        "body=%body\n  %unknown", 'body=%body, backend_config={"known_trip_count":{"n":"3"}}\n  %unknown'
    )
    assert CompiledText(known).cycles == 100 + 3 * 10 + 10


def test_products_are_counted_by_precision_and_bounded_by_memory_or_by_arithmetic() -> None:
    program = CompiledText(TEXT)
    assert program.products == (2, 1)
    operations = 2 * 8 * 16 * 4
    found = program.roofline(1e9, (1e6, 1e9))
    assert found["operations"] == 2 * operations
    assert found["operations_in_full_float32"] == operations
    moved = 4 * (8 * 16 + 16 * 4 + 8 * 4)
    other = found["bytes"] - 2 * moved
    assert found["roofline_seconds"] == pytest.approx(operations / 1e6 + max(operations, moved) / 1e9 + other / 1e9)


FUSED = """HloModule jit_step

%all-reduce-scatter.1 (p: f32[16,4]) -> f32[4,4] {
  %p = f32[16,4]{1,0} parameter(0)
  %whole = f32[16,4]{1,0} all-reduce(%p), channel_id=1, to_apply=%add
  ROOT %part = f32[4,4]{1,0} dynamic-slice(%whole, %p)
}

%begins (q: f32[4,4]) -> f32[16,4] {
  %q = f32[4,4]{1,0} parameter(0)
  ROOT %gathered = f32[16,4]{1,0} all-gather(%q), channel_id=1, dimensions={0}, frontend_attributes={chain_id="0"}
}

%ends (r: f32[4,4]) -> f32[16,4] {
  %r = f32[4,4]{1,0} parameter(0)
  ROOT %gathered.clone = f32[16,4]{1,0} all-gather(%r), channel_id=1, dimensions={0}, frontend_attributes={chain_id="0"}
}

%less (at.1: (s32[], f32[16,4])) -> pred[] {
  ROOT %always = pred[] constant(true)
}

%body (at: (s32[], f32[16,4])) -> (s32[], f32[16,4]) {
  %at = (s32[], f32[16,4]{1,0}) parameter(0)
  %x = f32[16,4]{1,0} get-tuple-element(%at), index=1
  %scattered = f32[4,4]{1,0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1
  %begun = f32[16,4]{1,0} fusion(%scattered), kind=kCustom, calls=%begins
  %done = f32[16,4]{1,0} fusion(%scattered), kind=kCustom, calls=%ends
  %passing = (f32[4]{0}, f32[4]{0}, u32[]) collective-permute-start(%few), channel_id=1, source_target_pairs={{0,1}}
  %passed = f32[4]{0} collective-permute-done(%passing)
  %other = f32[4,4]{1,0} reduce-scatter(%done), channel_id=1, dimensions={0}, to_apply=%add
  %another = f32[4,4]{1,0} reduce-scatter(%x), channel_id=1, dimensions={0}, to_apply=%add
  ROOT %next = (s32[], f32[16,4]{1,0}) tuple(%at, %done)
}

ENTRY %main (y: f32[16,4]) -> f32[16,4] {
  %y = f32[16,4]{1,0} parameter(0)
  %few = f32[4]{0} constant({1, 2, 3, 4})
  ROOT %loop = (s32[], f32[16,4]{1,0}) while(%y), condition=%less, body=%body, backend_config={"known_trip_count":{"n":"3"}}
}
"""


def test_operations_between_devices_are_found_where_they_are_fused_and_counted_once_with_their_bytes() -> None:
    found = [(each.kind, each.bytes, each.times) for each in CompiledText(FUSED).collectives]
    scattered, gathered = ("reduce-scatter", 4 * 64, 3), ("all-gather", 4 * 64, 3)
    assert found == [scattered, gathered, ("collective-permute", 4 * 4, 3), scattered, scattered]
