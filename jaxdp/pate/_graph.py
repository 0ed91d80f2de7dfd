"""What public examples alone tell of a task: coordinates in which neighbours among them lie close, and labels that spread there.

A graph joins each public example to its nearest ones. Its slowest diffusion modes are coordinates in which clusters, mostly of
one class each, stand apart; what a private example's are follows from its own nearest public ones. No private example shapes the
graph, so that a teacher who learns in these coordinates still depends on its own shard alone, and needs few examples of it.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.sparse
import scipy.sparse.linalg
import scipy.special
from jaxtyping import Array, Float, Float32, Float64, Int, Int32

from .. import _checks
from .._errors import UsageError
from ._student import check_labels

_ROWS = 1000  # examples whose nearest ones are looked for at a time
_TINY = 1e-6  # least distance that counts, for examples that are the same
_NOTHING = 1e-30  # what all edges of an example weigh together that lies far from others which are the same


def graph_coordinates(
    public: Float[Array | np.ndarray, "public features"],
    private: Float[Array | np.ndarray, "private _"],
    *,
    neighbours: int = 10,
    dimensions: int = 20,
) -> tuple[Float32[np.ndarray, "public dimensions"], Float32[np.ndarray, "private dimensions"]]:
    r"""Diffusion coordinates of public examples, and of private ones by their nearest public examples.

    With \(d_{ij}\) the distance of features scaled to length 1, and \(s_i\) that from i to the farthest of its k nearest, edges
    weigh \(\exp(-d_{ij}^2 / s_i s_j)\). Coordinates are the eigenvectors of the random walk with the largest eigenvalues λ, each
    times λ²; of another example, the mean of its neighbours' by the same weights, over λ (Nyström).

    Args:
        public: features of public examples, all of which may be seen by anyone.
        private: features of others; each row's coordinates depend on that row and on `public` alone.
        neighbours: k.
        dimensions: how many coordinates.

    Returns:
        float32 arrays, on the host.

    Raises:
        UsageError: for what isn't finite numbers of these shapes, and for too few public examples.

    References:
        Coifman and Lafon, "Diffusion maps", Applied and Computational Harmonic Analysis 21, 2006; Zelnik-Manor and Perona,
        "Self-tuning spectral clustering", NeurIPS 2004; Bengio et al., "Out-of-sample extensions for LLE, Isomap, MDS, Eigenmaps,
        and spectral clustering", NeurIPS 2003.
    """
    neighbours = _checks.count("neighbours", neighbours, "give the edges of an example, such as 10")
    dimensions = _checks.count("dimensions", dimensions, "give the number of coordinates, such as 20")
    public, private = _features("public", public), _features("private", private)
    if public.shape[1] != private.shape[1]:
        raise UsageError(
            f"public has shape {public.shape} and private {private.shape}: give features [examples, features], as many of each"
        )
    size = len(public)
    if size <= max(neighbours, dimensions):
        raise UsageError(
            f"{size} public examples are too few for {neighbours} neighbours and {dimensions} coordinates: give more of them, or "
            "ask for fewer"
        )
    known = _scaled(public)
    at, squares = _nearest(known, known, neighbours, themselves=True)
    reach = np.sqrt(np.maximum(squares.max(axis=1), _TINY))
    weights = np.exp(-squares / (reach[:, None] * reach[at]))
    weights[weights.sum(axis=1) < _NOTHING, 0] = 1.0  # it is joined to its nearest one
    rows = np.repeat(np.arange(size), neighbours)
    one_way = scipy.sparse.csr_matrix((weights.ravel(), (rows, at.ravel())), (size, size))
    values, walk = _slowest((one_way + one_way.T) / 2, dimensions)
    at, squares = _nearest(_scaled(private), known, neighbours)
    own_reach = np.sqrt(np.maximum(squares.max(axis=1), _TINY))
    exponents = squares / (own_reach[:, None] * reach[at])
    weights = np.exp(exponents.min(axis=1, keepdims=True) - exponents)
    weights /= weights.sum(axis=1, keepdims=True)
    extended = np.einsum("ij,ijk->ik", weights, walk[at])
    return (walk * values**2).astype(np.float32), (extended * values).astype(np.float32)


def spread_labels(
    coordinates: Float[Array | np.ndarray, "public dimensions"],
    labels: Int[Array | np.ndarray, " public"],
    *,
    confidence: float = 0.9,
) -> Int32[np.ndarray, " public"]:
    r"""Labels of all public examples from those of some: logistic regression in their coordinates, with a penalty of |w|² / 2.

    Args:
        coordinates: as `graph_coordinates` gives them.
        labels: integers, -1 where there is none.
        confidence: the least probability with which a class becomes a label.

    Returns:
        int32 [public]: the most probable class; where it is less probable than that, what was given. So a label that others
        contradict is replaced, too. Labels of a single class tell nothing of where others lie, and stay as they were given.

    Raises:
        UsageError: where no example has a label, and for what isn't finite numbers of these shapes.
    """
    confidence = _checks.non_negative("confidence", confidence, "give a probability, such as 0.9")
    coordinates = _features("coordinates", coordinates)
    given = np.asarray(_checks.array("labels", labels, "give whole numbers [examples], -1 where there is none"))
    known, answers = check_labels(given)
    if len(given) != len(coordinates):
        raise UsageError(
            f"{len(given)} labels of {len(coordinates)} coordinates: give one for each, -1 where there is none"
        )
    inputs = np.column_stack([coordinates.astype(np.float64), np.ones(len(given))])
    classes, numbers = np.unique(answers, return_inverse=True)
    if len(classes) == 1:
        return given.astype(np.int32)
    one_hot = np.eye(len(classes))[numbers]
    shape = inputs.shape[1], one_hot.shape[1]

    def loss(flat: Float64[np.ndarray, " weights"]) -> tuple[float, Float64[np.ndarray, " weights"]]:
        weights = flat.reshape(shape)
        logits = inputs[known] @ weights
        penalised = np.vstack([weights[:-1], np.zeros(shape[1])])
        gradient = inputs[known].T @ (scipy.special.softmax(logits, axis=1) - one_hot) + penalised
        likelihood = np.sum(logits * one_hot) - np.sum(np.asarray(scipy.special.logsumexp(logits, axis=1)))
        return np.sum(penalised**2) / 2 - likelihood, gradient.ravel()

    found = scipy.optimize.minimize(loss, np.zeros(shape[0] * shape[1]), jac=True, method="L-BFGS-B")
    probabilities = scipy.special.softmax(inputs @ found.x.reshape(shape), axis=1)
    sure = probabilities.max(axis=1) >= confidence
    return np.where(sure, classes[probabilities.argmax(axis=1)], given).astype(np.int32)


def _features(name: str, value: Any) -> np.ndarray:
    """Finite real numbers [examples, features], on the host."""
    fix = "give finite numbers [examples, features]"
    found = np.asarray(_checks.array(name, value, fix))
    if found.ndim != 2 or not found.size or not _checks.is_real(found):
        raise UsageError(f"{name} has shape {found.shape} and dtype {found.dtype}: {fix}")
    if not np.isfinite(found.astype(np.float32)).all():
        raise UsageError(f"{name} has numbers that are not finite in float32: {fix}")
    return found


def _scaled(features: Any) -> Float32[Array, "n features"]:
    """Of length 1; zeros stay zeros."""
    features = jnp.asarray(features, jnp.float32)
    return features / jnp.maximum(jnp.linalg.norm(features, axis=1, keepdims=True), _TINY)


def _nearest(
    of: Float32[Array, "n features"],
    known: Float32[Array, "public features"],
    neighbours: int,
    *,
    themselves: bool = False,
) -> tuple[Int32[np.ndarray, "n neighbours"], Float64[np.ndarray, "n neighbours"]]:
    """The nearest of the known examples, and the squares of their distances; no example is near itself."""
    parts = []
    for start in range(0, len(of), _ROWS):
        rows = of[start : start + _ROWS]
        first = start if themselves else -len(known) - _ROWS
        parts.append(jax.device_get(_most_alike(rows, known, first, neighbours)))
    alike = np.concatenate([part[0] for part in parts])
    at = np.concatenate([part[1] for part in parts])
    return at, np.maximum(2 - 2 * alike.astype(np.float64), 0.0)


@jax.jit(static_argnums=3)
def _most_alike(rows: Any, known: Any, first: Any, neighbours: int) -> Any:
    cosines = jnp.matmul(rows, known.T, precision="highest")
    own = jnp.arange(len(rows))[:, None] + first == jnp.arange(len(known))[None]
    return jax.lax.top_k(jnp.where(own, -2.0, cosines), neighbours)


def _slowest(
    weights: Any, dimensions: int
) -> tuple[Float64[np.ndarray, " dimensions"], Float64[np.ndarray, "public dimensions"]]:
    """The largest eigenvalues of a graph's random walk, and their eigenvectors, of mean square 1 in its stationary state."""
    degrees = np.asarray(weights.sum(axis=1)).ravel()
    scale = scipy.sparse.diags(degrees**-0.5)
    start = np.random.default_rng(0).uniform(0.5, 1.0, len(degrees))  # the same each time
    values, vectors = scipy.sparse.linalg.eigsh(scale @ weights @ scale, k=dimensions, which="LA", v0=start)
    order = np.argsort(-values)
    return values[order], vectors[:, order] * np.sqrt(degrees.sum() / degrees)[:, None]
