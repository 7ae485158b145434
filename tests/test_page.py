"""The report: self-contained, every link leads somewhere; and, in a real browser, that it looks right."""

import html
import html.parser
import re

import pytest

from experiments import claims, common, ledger, page, report, stopping
from tests import browser
from tests.helpers import stopping_results


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A page with one judged claim, its figure, and a table."""
    out = tmp_path_factory.mktemp("results")
    common.save(out, "stopping", stopping.Config(runs=2), stopping_results(), 12.0, "python -m <test>", "digest")
    report.draw_all(out)
    path, records = claims.write(out)
    wide = {"columns": ["matrix", "κ & more"], "rows": [["a<b", 1.0], ["x" * 300, 2]]}
    next(r for r in records if r["id"] == "N10")["numbers"]["table"] = wide
    path.write_text(claims.as_json(records), encoding="utf-8")
    return page.write(out)


class Elements(html.parser.HTMLParser):
    """(tag, attributes) of every element; complains about elements that are not closed."""

    VOID = ("meta", "link", "img", "br")

    def __init__(self, text: str):
        super().__init__()
        self.found, self.open = [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def all(self, name: str) -> list[str]:
        return [attributes[name] for _, attributes in self.found if name in attributes]


def test_page_needs_nothing_else(written):
    text = written.read_text(encoding="utf-8")
    elements = Elements(text)
    assert all(source.startswith("data:image/png;base64,") for source in elements.all("src")) and elements.all("src")
    assert all(link.startswith(("#", "data:")) for link in elements.all("href"))
    assert not re.search(r"@import|url\(|<script", text)


def test_every_claim_is_there_once_and_every_link_leads_somewhere(written):
    elements = Elements(written.read_text(encoding="utf-8"))
    ids = elements.all("id")
    assert len(set(ids)) == len(ids) and {entry.id for entry in ledger.LEDGER} <= set(ids)
    assert {link[1:] for link in elements.all("href") if link.startswith("#")} <= set(ids)


def test_text_is_escaped_and_verdicts_counted(written):
    text = written.read_text(encoding="utf-8")
    assert "python -m &lt;test&gt;" in text and "a&lt;b" in text and "κ &amp; more" in text
    reasons = {r["reason"] for r in claims.judge(written.parent) if r["verdict"] == claims.NOT_RUN}
    assert all(html.escape(reason) in text for reason in reasons)
    assert f"<b>1</b>{claims.REFUTED}" in text and f"<b>{len(ledger.LEDGER) - 1}</b>{claims.NOT_RUN}" in text


@pytest.mark.slow
@pytest.mark.skipif(not (browser.CHROMIUM and browser.DRIVER), reason="needs chromium and chromium-driver")
def test_in_a_browser(written, tmp_path):
    with browser.browser(tmp_path / "profile") as b:
        b.size(1280)
        b.open(written)
        assert all(width > 100 for width in b.run("return [...document.images].map(i => i.naturalWidth)"))
        # navigation: every link of the page brings its target to the top, below the bar
        b.run("document.querySelector('nav a[href=\"#N\"]').click()")
        top = b.run("return document.getElementById('N').getBoundingClientRect().top")
        bar = b.run("return document.querySelector('nav').getBoundingClientRect().bottom")
        assert bar <= top < bar + 40
        b.size(390, 844)
        assert b.run("return document.documentElement.scrollWidth") <= 390
        assert b.run("return getComputedStyle(document.querySelector('.stack thead')).display") == "none"
        colours = []
        for scheme in ("light", "dark"):
            b.media(scheme=scheme)
            colours.append(b.run("return getComputedStyle(document.body).backgroundColor"))
        assert colours == ["rgb(255, 255, 255)", "rgb(13, 17, 23)"]
        b.media("print", "dark")
        assert b.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert b.run("return getComputedStyle(document.querySelector('nav')).display") == "none"
        assert b.pdf().startswith(b"%PDF")
        assert b.console() == []
