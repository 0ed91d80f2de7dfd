"""The checker that executes jaxdp's annotations in the tests; an int passes for a float, as PEP 484 says."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
