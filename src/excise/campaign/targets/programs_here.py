"""Programs that a campaign starts on this machine, as each configuration finds them."""

from __future__ import annotations

import os

from excise.campaign.spec import Campaign, Configuration
from excise.capture.manifest import Fact
from excise.collect.host import facts_by_configuration, program_facts, require_programs


def require_programs_here(campaign: Campaign) -> None:
    """Refuse a campaign one of whose programs is not found.

    Raises:
        HostError: Naming every one that is missing, and the configuration where it is its own PATH.
    """
    for each in campaign.configurations:
        require_programs(
            campaign.programs_under(each),
            environment=_environment(each),
            source=f"configuration {each.name!r}" if each.has_own_path else None,
        )


def program_facts_here(campaign: Campaign) -> list[Fact]:
    """Return facts of the programs as each configuration finds them, the baseline first."""
    return facts_by_configuration(
        {
            each.name: program_facts(campaign.programs_under(each), environment=_environment(each))
            for each in campaign.baseline_first
        }
    )


def _environment(configuration: Configuration) -> dict[str, str]:
    """Return the environment of a configuration's children."""
    kept = {name: value for name, value in os.environ.items() if name not in configuration.unset}
    return {**kept, **configuration.environment}
