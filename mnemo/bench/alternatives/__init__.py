"""What a user would choose instead of a memory model: equal training time, the same text, the same optimizer.

`docs/alternatives.md` declares rows, time rule and scores. `rows.py` holds the rows, `recipes.py` what each trains,
`flash.py` attention without memory, `gated_delta.py` the recurrent layers of flash-linear-attention as a memory of
Mnemo's model, `measure.py` the stages of a row, and `results.py` its file and the table.
"""
