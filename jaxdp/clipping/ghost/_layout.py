"""How a rule factorises the gradient with respect to one use of a parameter, as far as shapes tell.

A gradient is a stack of E matrices, each a sum over T rows of outer products of a left vector of p entries (from the
forward pass) and a right vector of d entries (the output's cotangent):

    gradient[e, :, :] = Σ_t left[e, t, :] ⊗ right[e, t, :]
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Layout:
    """Which axes of the parameter operand are stacked, left and right, in order, and how large each part is.

    Attributes:
        stack_axes, left_axes, right_axes: axes of the operand; their product is the operand's size.
        stack, rows, left, right: E, T, p and d.
        fixed: set where the entries don't follow the axes' order alone (a convolution's groups); such uses agree only
            where this and all axes do.
        one_hot: whether a left vector has a single entry, so that its products cost nothing.
    """

    stack_axes: tuple[int, ...]
    left_axes: tuple[int, ...]
    right_axes: tuple[int, ...]
    stack: int
    rows: int
    left: int
    right: int
    fixed: tuple[int, ...] | None = None
    one_hot: bool = False

    @property
    def size(self) -> int:
        """Entries of the parameter operand."""
        return self.stack * self.left * self.right

    @property
    def floats(self) -> int:
        """Values in a pair of left and right vectors."""
        return (1 if self.one_hot else self.left) + self.right

    def sorted_by(self, axes: tuple[int, ...]) -> "Layout":
        """The same with each part's axes in the order in which the base of a view has them."""
        if self.fixed is not None:
            return self
        order = lambda part: tuple(sorted(part, key=lambda axis: axes[axis]))
        return replace(
            self,
            stack_axes=order(self.stack_axes),
            left_axes=order(self.left_axes),
            right_axes=order(self.right_axes),
        )

    def on_base(self, axes: tuple[int, ...]) -> tuple[object, ...]:
        """What two uses must have in common to be rows of the same matrices: (stacked, left and right axes, order)."""
        on = lambda part: tuple(axes[i] for i in part)
        return on(self.stack_axes), on(self.left_axes), on(self.right_axes), self.fixed
