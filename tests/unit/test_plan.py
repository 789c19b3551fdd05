"""A question is taken apart as its asker meant it, and always in the same way."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from researchcopilot.agents.research import question_of
from researchcopilot.agents.research.plan import language_of, plan
from researchcopilot.agents.research.terms import coverage, pieces, segments, weigh
from researchcopilot.core.errors import BadAgentInput


def asked(question: str) -> list[str]:
    return [piece.text for piece in plan(question).searches[0].pieces if not piece.soft]


@pytest.mark.parametrize(
    ("question", "sides", "aspect"),
    [
        ("对比 pgvector 与 Qdrant", ("pgvector", "Qdrant"), ""),
        ("比较一下 pgvector、Qdrant 和 Milvus", ("pgvector", "Qdrant", "Milvus"), ""),
        ("对比 pgvector 与 Qdrant 的过滤", ("pgvector", "Qdrant"), "过滤"),
        ("pgvector 和 Qdrant 有什么区别？", ("pgvector", "Qdrant"), ""),
        ("进程和线程的区别", ("进程", "线程"), ""),
        ("HNSW 与 IVFFlat 在内存方面的差异", ("HNSW", "IVFFlat"), "内存"),
        ("用 pgvector 还是 Qdrant 好？", ("pgvector", "Qdrant"), ""),
        ("pgvector vs. Qdrant for filtering", ("pgvector", "Qdrant"), "filtering"),
        ("Compare the GIL and free-threading", ("GIL", "free-threading"), ""),
        ("What is the difference between MRR and nDCG?", ("MRR", "nDCG"), ""),
        ("How does BLMOVE differ from BRPOP?", ("BLMOVE", "BRPOP"), ""),
        ("how do threads and processes compare?", ("threads", "processes"), ""),
        ("Should I use asyncio or threads for a crawler?", ("asyncio", "threads"), "crawler"),
        ("C++ vs C#", ("C++", "C#"), ""),
    ],
)
def test_a_comparison_has_a_search_for_each_side_and_one_for_all(
    question: str, sides: tuple[str, ...], aspect: str
) -> None:
    found = plan(question)
    assert (found.kind, found.sides) == ("compare", sides)
    assert [search.label for search in found.searches] == [*sides, ""]
    assert [bool(search.needs) for search in found.searches] == [True] * len(sides) + [False]
    for piece in pieces(aspect):
        assert all(piece in search.pieces for search in found.searches)


@pytest.mark.parametrize(
    "question",
    ["如何比较两个模型", "compare and swap 是什么", "锁和事务", "这和那有什么区别", "对比"],
)
def test_what_is_no_comparison_is_not_made_one(question: str) -> None:
    assert plan(question).kind != "compare"


@pytest.mark.parametrize(
    ("question", "kind", "searches"),
    [
        ("RAG 的召回率怎么评", "evaluate", 2),
        ("How do I measure recall?", "evaluate", 2),
        ("怎么避免死锁", "how", 2),
        ("How does the GIL affect concurrency?", "how", 2),
        ("为什么长事务不好", "why", 2),
        ("What is a fencing token?", "plain", 1),
        ("是什么", "plain", 0),
        ("???", "plain", 0),
    ],
)
def test_the_kind_of_a_question(question: str, kind: str, searches: int) -> None:
    found = plan(question)
    assert (found.kind, len(found.searches)) == (kind, searches)


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("RAG 的召回率怎么评", ["rag", "召回率"]),
        ("锁是什么", ["锁"]),
        ("请问什么是背压？", ["背压"]),
        ("pgvector 的性能和功能", ["pgvector", "性能", "功能"]),
        ("参与者的目的是什么", ["参与者", "目的"]),
        ("How does the GIL affect concurrency?", ["gil", "concurrency"]),
        ("Is C++ faster than gpt-4o?", ["c++", "faster", "gpt-4o"]),
    ],
)
def test_function_words_are_left_out_and_words_stay_whole(question: str, words: list[str]) -> None:
    assert asked(question) == words


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("pgvector 的创始人", ["pgvector"]),
        ("How does Raft elect a leader?", ["raft"]),
        ("Which GPU has HBM3?", ["gpu", "hbm3"]),
        ("Threads are cheap", []),
    ],
)
def test_names_are_recognised_by_their_spelling(question: str, names: list[str]) -> None:
    assert [piece.text for piece in pieces(question) if piece.name] == names


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("对比 pgvector 与 Qdrant", "zh"),
        ("What does 召回率 mean in the context of RAG?", "en"),
        ("GIL", "en"),
        ("GILとは何ですか", "en"),
        ("锁", "zh"),
    ],
)
def test_the_frame_follows_the_sentence(text: str, language: str) -> None:
    assert language_of(text) == language


@given(st.text(alphabet="的召回率性能是什么怎么样和与目的存在", max_size=40))
def test_segments_keep_the_order_and_invent_nothing(run: str) -> None:
    at = 0
    for part, _ in segments(run):
        at = run.index(part, at) + len(part)


@given(st.text(max_size=200))
def test_any_text_has_one_plan(question: str) -> None:
    assert plan(question) == plan(question)


def test_coverage_counts_rare_words_more_and_characters_of_chinese_words() -> None:
    common = {"gil": 90, "召回": 5, "回率": 5, "率指": 0, "指标": 9}
    weighted = weigh(pieces("gil founder"), lambda token: common.get(token, 0), 100)
    assert coverage(weighted, {"gil"}) < 0.4 < coverage(weighted, {"founder"})
    weighted = weigh(pieces("召回率指标"), lambda token: common.get(token, 0), 100)
    # 率指 straddles two words: a text that holds both words apart holds the whole.
    assert coverage(weighted, {"召回", "回率", "指标"}) == pytest.approx(1.0)
    assert coverage(weighted, {"召回", "回率"}) == pytest.approx(0.6, abs=0.1)
    assert coverage(weighted, set()) == 0


@pytest.mark.parametrize("value", ["why?", {"question": "why?"}])
def test_a_question_is_text_or_an_object_with_it(value: object) -> None:
    assert question_of(value) == "why?"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, "a string, or an object"),
        (["why?"], "a string, or an object"),
        ({"q": "why?"}, "a string, or an object"),
        ({"question": "why?", "k": 5}, "nothing else"),
        ({"question": 7}, "a string, or an object"),
        ("  \n", "is empty"),
        ("x" * 2001, "2,001 characters; research takes 2,000"),
    ],
)
def test_any_other_input_is_refused_with_what_is_right(value: object, says: str) -> None:
    with pytest.raises(BadAgentInput, match=says):
        question_of(value)


def test_a_worker_without_an_index_does_not_pay_for_tantivy() -> None:
    code = (
        "import sys, researchcopilot.agents.research, researchcopilot.agents.rebuild\n"
        "sys.exit('tantivy' in sys.modules)"
    )
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=path, timeout=60).returncode == 0
