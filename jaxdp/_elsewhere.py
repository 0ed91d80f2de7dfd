"""What other libraries call things that are here under another name: the answer to whoever looks for them here."""

_STEP = "describe the run, run = jaxdp.DPSGD(...), and take its steps, step = run.make_step(loss, optimizer)"
_EPSILON = "run.epsilon(delta=...) is that of the run's steps, and run.statement(delta=...) says it in words"
_HERE = {
    **dict.fromkeys(("PrivacyEngine", "make_private", "DPKerasSGDOptimizer", "DPKerasAdamOptimizer"), _STEP),
    **dict.fromkeys(("GradSampleModule", "DPModel", "DPSequential"), f"any loss of one example will do: {_STEP}"),
    "make_private_with_epsilon": f"{_STEP}, of run.with_noise_for(epsilon=..., delta=...)",
    **dict.fromkeys(("get_epsilon", "compute_epsilon", "get_privacy_spent", "get_privacy_budget"), _EPSILON),
    **dict.fromkeys(("compute_dp_sgd_privacy", "compute_dp_sgd_privacy_statement"), _EPSILON),
    "Ledger": "it is jaxdp.accounting.Ledger; state.ledger is a run's",
    "get_noise_multiplier": "run.with_noise_for(epsilon=..., delta=...), or jaxdp.accounting.noise_multiplier",
    "differentially_private_aggregate": "jaxdp.privatize is the noise, for sums of jaxdp.clipped_grad",
}


def elsewhere(name: str) -> str | None:
    """What to use here; None for a name of nobody's."""
    return _HERE.get(name)
