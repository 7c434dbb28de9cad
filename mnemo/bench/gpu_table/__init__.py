"""The table of speeds that Mnemo must reach on one GPU, measured by one command.

`rows.py` declares the table. Each row is measured in a process of its own (`worker.py`): an error, or a kernel that
breaks the device's context, ends one row. Rows whose memory fits the card together compile at the same time and are
measured one after the other (`schedule.py`).
"""
