"""The agent's eyes: ledger, account pages, processes, leases and NVML, and the helper processes that it runs. Nothing is judged here."""
