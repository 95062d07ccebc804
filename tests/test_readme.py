"""The README and the pages refer to files that are there, and every bundled job can be read."""

import re
from pathlib import Path

import pytest

from batchgen.job.load import load_job

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "data" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", page.read_text())
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_jobs_that_are_mentioned_are_there_and_can_be_read() -> None:
    mentioned = set(re.findall(r"jobs/\w+\.yaml", (ROOT / "README.md").read_text()))
    assert mentioned
    jobs = {str(path.relative_to(ROOT)) for path in (ROOT / "jobs").glob("*.yaml")}
    assert mentioned <= jobs
    for job in jobs:
        load_job(ROOT / job)
