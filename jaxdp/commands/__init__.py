"""The work behind the command line, one command a file or folder; each takes its options as a frozen dataclass.

`train` trains one model or folds of it, `tune` several of which it keeps the best, `pate` has teachers, labels and a student,
`_accounting` answers the accountant's questions, `_audit` attacks a finished run, `_predict`, `_compare` and `_lookalike` are
small. `_options` and `_effects` have the checks that all share.
"""
