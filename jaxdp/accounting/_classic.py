"""The Rényi accountant with the older conversion to (ε, δ): ε = ρ(α) + ln(1/δ) / (α - 1).

Imported where it is used, since it imports dp-accounting.
"""

import math

import numpy as np
from dp_accounting.rdp import RdpAccountant


class ClassicRdpAccountant(RdpAccountant):
    """dp-accounting's Rényi curve, converted as tutorials do (Mironov, arXiv 1702.07476, proposition 3)."""

    def get_epsilon_and_optimal_order(self, target_delta: float) -> tuple[float, float]:
        """The smallest ε over the orders α, and that order."""
        if not self.rdp.any():
            return 0.0, float(self.orders[-1])
        epsilons = self.rdp + math.log(1 / target_delta) / (self.orders - 1)
        best = int(np.argmin(epsilons))
        return float(epsilons[best]), float(self.orders[best])

    def get_epsilon(self, target_delta: float) -> float:
        """The smallest ε over the orders α."""
        return self.get_epsilon_and_optimal_order(target_delta)[0]
