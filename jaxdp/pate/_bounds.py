r"""Rényi differential privacy of one noisy vote, with and without looking at the votes.

All functions work in float64 on the host, vectorised over queries and orders. Where the teachers agree, the noisy winner is
almost surely theirs, whatever one of them does: the data-dependent cost is a small part of the data-independent one. It is
a function of q, a bound on the probability that the noisy winner is not the plurality; since q can be as small as 1e-300, its
logarithm is what is computed with.

With n teachers' votes \(n_1, \dots, n_m\), the winner's \(n^*\) and the gaps \(\Delta_j = n^* - n_j\) of the others.
"""

from functools import cache

import numpy as np
from jaxtyping import Float64, Int
from scipy.special import log1p, log_ndtr, logsumexp

Orders = Float64[np.ndarray, " orders"]
LEAST_CONVERTED = 1.01  # order, above which dp-accounting makes an epsilon of it
PerQuery = Float64[np.ndarray, " queries"]
Curves = Float64[np.ndarray, "queries orders"]


def gaps(votes: Int[np.ndarray, "queries classes"]) -> Float64[np.ndarray, "queries classes-1"]:
    """By how many votes the plurality leads each of the other classes."""
    counts = np.sort(np.asarray(votes, np.float64), axis=1)
    return counts[:, -1:] - counts[:, :-1]


def laplace_log_q(votes: Int[np.ndarray, "queries classes"], gamma: float) -> PerQuery:
    r"""\(\ln q\) for Laplace noise of scale \(1/\gamma\).

    \[ q \le \min\Bigl(1 - \frac1m, \sum_j \frac{2 + \gamma\Delta_j}{4 e^{\gamma\Delta_j}}\Bigr) \]

    References:
        Papernot et al., "Semi-supervised Knowledge Transfer for Deep Learning from Private Training Data", arXiv 1610.05755,
        lemma 4.
    """
    lead = gamma * gaps(votes)
    return _at_most_a_guess(np.asarray(logsumexp(np.log(2 + lead) - np.log(4) - lead, axis=1)), votes.shape[1])


def gaussian_log_q(votes: Int[np.ndarray, "queries classes"], sigma: float) -> PerQuery:
    r"""\(\ln q\) for Gaussian noise: \(q \le \min(1 - 1/m, \tfrac12 \sum_j \mathrm{erfc}(\Delta_j / 2\sigma))\).

    References:
        Papernot et al., "Scalable Private Learning with PATE", arXiv 1802.08908, proposition 7.
    """
    tails = log_ndtr(-gaps(votes) / (sigma * np.sqrt(2)))
    return _at_most_a_guess(np.asarray(logsumexp(tails, axis=1)), votes.shape[1])


def threshold_log_q(top: Float64[np.ndarray, " queries"], threshold: float, sigma: float) -> PerQuery:
    r"""\(\ln \min(p, 1 - p)\) with the probability \(p = \Phi((n^* - T)/\sigma)\) that a query passes the threshold."""
    lead = (np.asarray(top, np.float64) - threshold) / sigma
    return log_ndtr(-np.abs(lead))


def laplace_rdp(gamma: float, orders: Orders, *, classic: bool = False) -> Orders:
    r"""The data-independent RDP of a Laplace noisy vote, [orders].

    With \(e = 2\gamma\): \(\min(e, e^2\alpha/2)\); and, unless `classic`, twice that of one Laplace mechanism of scale
    \(1/\gamma\) if that is less: a vote that moves changes two counts by one each, of which the winner is computed.
    """
    orders = np.asarray(orders, np.float64)
    pure = 2 * gamma
    bound = np.minimum(pure, pure**2 * orders / 2)
    return bound if classic else np.minimum(bound, 2 * _one_laplace(gamma, tuple(orders)))


def gaussian_rdp(sigma: float, orders: Orders) -> Orders:
    r"""The data-independent RDP of a Gaussian noisy vote, \(\alpha/\sigma^2\), [orders]."""
    return np.asarray(orders, np.float64) / sigma**2


def laplace_rdp_given_votes(log_q: PerQuery, gamma: float, orders: Orders, *, classic: bool = False) -> Curves:
    r"""RDP of each query, [queries, orders], at most the data-independent one.

    \[ \rho(\alpha) \le \frac{1}{\alpha - 1} \ln\Bigl[(1-q)\Bigl(\frac{1-q}{1-e^{e}q}\Bigr)^{\alpha-1} + q e^{e(\alpha-1)}\Bigr]
       \quad\text{where } q < 1/(e^{e} + 1),\; e = 2\gamma. \]

    References:
        Papernot et al., arXiv 1610.05755, theorem 3 (its condition, which later code replaced by q < 1/2).
    """
    orders = np.asarray(orders, np.float64)
    independent = np.broadcast_to(laplace_rdp(gamma, orders, classic=classic), (len(log_q), len(orders)))
    pure = 2 * gamma
    holds = log_q < -np.logaddexp(0, pure)
    safe, power = np.where(holds, log_q, -np.inf)[:, None], orders - 1
    stays = log1p(-np.exp(safe))
    kept = stays + power * (stays - log1p(-np.exp(safe + pure)))
    dependent = np.logaddexp(kept, safe + pure * power) / power
    return np.where(holds[:, None], np.minimum(np.maximum(dependent, 0), independent), independent)


def gaussian_rdp_given_votes(log_q: PerQuery, sigma: float, orders: Orders) -> Curves:
    r"""RDP of each query, [queries, orders], at most the data-independent \(\alpha/\sigma^2\).

    With \(\mu_2 = \sigma\sqrt{\ln(1/q)}\), \(\mu_1 = \mu_2 + 1\), \(\varepsilon_i = \mu_i/\sigma^2\):

    \[ \rho(\alpha) \le \frac{1}{\alpha-1} \ln\bigl[(1-q) A^{\alpha-1} + q B^{\alpha-1}\bigr], \quad
       A = \frac{1-q}{1 - (q e^{\varepsilon_2})^{(\mu_2-1)/\mu_2}}, \quad B = \frac{e^{\varepsilon_1}}{q^{1/(\mu_1-1)}} \]

    References:
        Papernot et al., arXiv 1802.08908, theorem 6 with proposition 10.
    """
    orders = np.asarray(orders, np.float64)
    independent = np.broadcast_to(gaussian_rdp(sigma, orders), (len(log_q), len(orders)))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        q = log_q[:, None]
        mu2 = sigma * np.sqrt(-q)
        mu1 = mu2 + 1
        limit = (mu2 - 1) * mu2 / sigma**2 - mu2 * (np.log(mu1 / (mu1 - 1)) + np.log(mu2 / (mu2 - 1)))
        holds = (mu1 > orders) & (mu2 > 1) & (-q > mu2 / sigma**2) & (q <= limit)
    certain = np.isneginf(q)
    dependent = np.where(certain, 0.0, gaussian_bound(log_q, sigma, orders))
    return np.where(holds | certain, np.minimum(np.maximum(dependent, 0), independent), independent)


def gaussian_bound(log_q: PerQuery, sigma: float, orders: Orders) -> Curves:
    """The formula of `gaussian_rdp_given_votes` without its conditions, [queries, orders]; NaN where it has no value."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        q, power = log_q[:, None], np.asarray(orders, np.float64) - 1
        mu2 = sigma * np.sqrt(-q)
        epsilon1, epsilon2 = (mu2 + 1) / sigma**2, mu2 / sigma**2
        stays = log1p(-np.exp(q))
        log_a = stays - log1p(-np.exp((q + epsilon2) * (mu2 - 1) / mu2))
        log_b = epsilon1 - q / mu2
        return np.logaddexp(stays + power * log_a, q + power * log_b) / power


@cache
def _one_laplace(gamma: float, orders: tuple[float, ...]) -> Orders:
    from dp_accounting import LaplaceDpEvent
    from dp_accounting.rdp import RdpAccountant

    return RdpAccountant(orders).compose(LaplaceDpEvent(float(1 / gamma))).rdp


def _at_most_a_guess(log_q: PerQuery, classes: int) -> PerQuery:
    return np.minimum(log_q, np.log1p(-1 / classes))
