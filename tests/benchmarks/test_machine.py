"""Facts about the machine."""

import json

from crumpets_like.benchmarks import machine


def test_facts_are_ready_for_json() -> None:
    facts = machine.facts()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["cores"]
    assert facts["numpy"]
    assert f"{facts['cores']} cores" in machine.summary(facts)


def test_a_package_that_is_not_installed_has_no_version() -> None:
    assert machine.version("no-such-package-anywhere") is None
