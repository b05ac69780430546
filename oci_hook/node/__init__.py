"""What this node is and remembers: settings, inventory, driver files, the ledger."""
