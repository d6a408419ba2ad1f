"""Who may do what, how much, and how much was done. Values and clocks in, values out; no I/O."""
