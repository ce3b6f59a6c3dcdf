"""The papers' tables and figures as files: what to run, the papers' own numbers, and their claims.

recipe.py           a recipe file, read and checked (recipe_checks.py)
cells.py            the runs of a recipe: one per row, column and seed
numbers.py          what a run shows: named numbers (rare ones in special_numbers.py), series
run_record.py       a finished run as a line of runs.jsonl
results.py          records of finished runs (cell_list.py and round_series.py: as CSV)
tuned_rows.py       what the trials of tuned rows chose
planner.py          what is missing, what it costs, and what comes first
runner.py           jobs to worker processes (worker_pool.py, cell_worker.py), results to disk
verdicts.py         whether a claim holds, by paired differences over seeds
paper_table.py      the table, the paper's number beside ours
evidence.py         what all finished runs of a recipe show
campaign.py         all of it, from recipes to written results
"""
