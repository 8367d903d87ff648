"""The ledger: what a record holds, how it is written, and how it is read."""
