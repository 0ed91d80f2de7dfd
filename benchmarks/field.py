"""Accuracies that the field quotes, with how they were come by: figures from papers, for the table and the picture of records."""

from typing import NamedTuple


class Quoted(NamedTuple):
    """A figure from a paper, at δ = 1e-5.

    Attributes:
        accuracy: on the test set; on a part held back for Adult.
        remark: what its epsilon isn't true of, or what the figure leaves out.
    """

    method: str
    epsilon: float
    accuracy: float
    source: str
    remark: str = ""


_SHUFFLED = "batches shuffled and accounted as Poisson, best epoch kept"
_VOTES = "ε by the votes, which is private itself; 1,000 images to test on"
_REJECTED = "rejected steps are free, which arXiv 2606.04384 says overlooks how they change the sampling"
MNIST = (
    Quoted("CNN on PCA, DP-SGD", 2.0, 0.95, "arXiv 1607.00133"),
    Quoted("CNN, tempered sigmoids", 2.93, 0.981, "arXiv 2007.14191", _SHUFFLED),
    Quoted("scattering, linear", 3.0, 0.987, "arXiv 2011.11660", _SHUFFLED),
    Quoted("DPSUR", 1.0, 0.979, "arXiv 2311.14056", _REJECTED),
    Quoted("DPSUR", 3.0, 0.989, "arXiv 2311.14056", _REJECTED),
    Quoted("PATE", 1.97, 0.985, "arXiv 1802.08908", _VOTES),
)
ADULT = (Quoted("PATE", 1.90, 0.837, "arXiv 1802.08908", "ε by the votes, which is private itself"),)
