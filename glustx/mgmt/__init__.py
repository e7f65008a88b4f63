"""The volume server: one process that hands out volfiles and ports, and one process for each brick."""
