"""Benchmarks behind ``crumpets-like bench``; installed as ``crumpets_like.benchmarks``.

Layout, from the bottom up:

``datasets``, ``torch_datasets``, ``photos``, ``crops``
    what is loaded; importable modules, so that every start method can find the classes.
``copy_workers``
    the workers that our loader runs: they copy a sample into its rows.
``requirements``, ``case``, ``cases``
    each case: its dataset, sizes and contenders, and what must be reached.
``measure``, ``ours``, ``torch_loader``, ``limit``, ``child``
    one contender in one fresh process, measured.
``memory``, ``machine``, ``harness``
    starts those processes in turn and gathers their numbers.
``table``, ``cli``
    shows them.
``soak_workers``, ``soak_plan``, ``sabotage``, ``guard``, ``soak``
    ``crumpets-like soak``: what is loaded; random configurations and what they must give; kills;
    what a run must not leave behind; the run itself.
``fault_items``, ``fault_child``, ``faults``
    the fault table: what fails; one case in a fresh process; all of them, and what they leave.
"""
