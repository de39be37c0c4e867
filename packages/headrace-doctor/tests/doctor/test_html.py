"""The page: whole in itself, escaped, light, and right in a real browser."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from headrace_doctor.doctor.html import render_html
from headrace_doctor.doctor.records import Advice, Step, TimeShare, Usage
from headrace_doctor.doctor.wording import plain
from support import doctor_records as records


class Page(HTMLParser):
    """Elements with their attributes, and the text outside and inside of scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self._inside = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in self.raw:
            self._inside = tag
            self.raw[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.raw[self._inside][-1] += data
        else:
            self.text += data

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag == name]

    @property
    def record(self) -> Any:
        return json.loads(self.raw["script"][0])


@pytest.mark.parametrize("name", records.ALL)
def test_the_record_is_in_the_page(name: str) -> None:
    diagnosis = records.ALL[name]()
    expected = json.loads(json.dumps(diagnosis.to_json()).replace("Infinity", "null"))
    assert Page(render_html(diagnosis)).record == expected


@pytest.mark.parametrize("name", records.ALL)
def test_nothing_is_loaded_and_the_policy_forbids_it(name: str) -> None:
    page = Page(render_html(records.ALL[name]()))
    assert [a for tag, a in page.elements if "src" in a or "srcset" in a or "style" in a] == []
    assert [a["href"] for _, a in page.elements if "href" in a] == ["data:,"]
    assert re.findall(r"url\((?!#)|@import|https?:", page.raw["style"][0] + page.raw["script"][1]) == []
    policy = next(a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    for content in (page.raw["style"][0], page.raw["script"][1]):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "unsafe" not in policy


def test_what_users_name_is_text_wherever_it_stands() -> None:
    html = render_html(records.hostile())
    page = Page(html)
    assert len(page.all("script")) == 2
    assert page.all("img") == []
    assert [a for _, a in page.elements if any(name.startswith("on") for name in a)] == []
    # In the head, advice, rates, stages, causes, memory, notes and phases, as text each time.
    assert page.text.count(plain(records.HOSTILE)) > 15
    html.encode()  # no lone surrogate is left
    assert not {"\x1b", "\u2028"} & set(html)


def test_names_in_attributes_stay_there() -> None:
    usage = tuple(Usage(float(n), '"><script>"', 1.0, 0.0, 1, 1) for n in range(9))
    page = Page(render_html(replace(records.healthy(), usage=usage, steps=())))
    assert len(page.all("script")) == 2


def test_sections_are_there_where_there_is_something_to_say() -> None:
    full, bare = (Page(render_html(d)) for d in (records.input_bound(), records.empty()))
    for heading in ("What to change", "How it was measured", "Over time", "Memory", "Notes"):
        assert heading in full.text
    for heading in ("What to change", "Over time", "Memory"):
        assert heading not in bare.text


def test_figures_of_the_verdict_the_method_and_the_advice() -> None:
    text = " ".join(Page(render_html(records.input_bound())).text.split())
    for figure in (
        "it costs 68% of the training's time",
        "1,400 batches in 221 s",
        "1,294 to 1,318",
        "at most 3.1 times, measured: 2.9 times",
        "about 1.2 times as fast, at most 2.9 times",
        "Watching took 0.4%",
        "6,120 samples",
    ):
        assert figure in text


def test_where_the_time_goes_is_reported_where_it_is_known() -> None:
    time = (TimeShare("waiting for data", 0.31), TimeShare("<b>loop</b>", 0.5))
    page = Page(render_html(replace(records.healthy(), time=time)))
    assert "Where the time goes share waiting for data31% <b>loop</b>50%" in " ".join(page.text.split())
    assert {"max": "1", "value": "0.31"} in page.all("progress")
    assert "Where the time goes" not in Page(render_html(records.empty())).text


def test_a_healthy_script_has_no_bottleneck() -> None:
    page = Page(render_html(records.healthy()))
    assert "the bottleneck" not in page.text
    assert {"class": "good"} in page.all("h1")


def test_only_stages_below_demand_are_marked() -> None:
    page = Page(render_html(records.input_bound()))
    assert [a["class"] for a in page.all("tr") if a.get("class")].count("short") == 2


def drawn(page: Page) -> list[str]:
    return [str(a["points"]) for a in page.all("polygon")]


def test_many_steps_stay_light() -> None:
    steps, usage = records.timeline(5_000, wait=0.1, compute=0.05)
    html = render_html(replace(records.input_bound(), steps=steps, usage=usage))
    page = Page(html)
    assert len(html) - len(page.raw["script"][0]) < 250_000
    assert len(drawn(page)) == 6
    assert all(10 < points.count(",") <= 603 for points in drawn(page))


def test_a_few_long_steps_dont_flatten_the_others() -> None:
    steps = tuple(Step("actual", float(n), 7.0 if n == 98 else 0.01, 0.1) for n in range(99))
    page = Page(render_html(replace(records.healthy(), steps=steps, usage=())))
    assert "the upper edge is 440 ms" in page.text
    assert "up to 7,100" in page.text


def test_extreme_values_are_drawn_without_nonsense() -> None:
    usage = tuple(Usage(float(n), "actual", 0.0, 0.0, 0, 0) for n in range(3))
    steps = (Step("actual", 0.0, 0.0, 0.0),)
    stages = tuple(
        replace(stage, samples_per_second=value)
        for stage, value in zip(records.input_bound().stages, (0.0, math.inf, 1e300), strict=False)
    )
    html = render_html(replace(records.input_bound(), steps=steps, usage=usage, stages=stages))
    assert not re.search(r"\b(nan|inf)\b", " ".join(drawn(Page(html))))


def test_code_to_be_copied_is_left_as_it_is() -> None:
    advice = Advice("decode", "x", ("+n = 5 % 3",), 1.5)
    page = Page(render_html(replace(records.healthy(), advice=(advice,))))
    assert "n = 5 % 3" in page.text


def test_phases_are_listed_and_drawn() -> None:
    page = Page(render_html(records.input_bound()))
    assert "the script as it is, the step alone, the loader alone" in " ".join(page.text.split())
    assert {a["class"] for a in page.all("rect")} == {"band0", "band1"}
