"""The error tree: no two classes share a reason, and the answer to a request is decided by the class alone."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Iterator

import pytest

import app
from app.broker.errors import ApplicationError
from app.cluster.protocol import ProblemReply, error_of, problem_reply
from app.web.problems import PROBLEMS

pytestmark = pytest.mark.unit

for module in pkgutil.walk_packages(app.__path__, "app."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)


def subclasses(parent: type[ApplicationError]) -> Iterator[type[ApplicationError]]:
    for child in parent.__subclasses__():
        if child.__module__.startswith("app."):
            yield child
            yield from subclasses(child)


ERRORS: tuple[type[ApplicationError], ...] = (ApplicationError, *dict.fromkeys(subclasses(ApplicationError)))


def test_no_two_error_classes_state_the_same_reason() -> None:
    reasons = Counter(error.reason for error in ERRORS if "reason" in vars(error))
    assert [reason for reason, count in reasons.items() if count > 1] == []


def test_the_web_application_explains_the_problem_type_of_every_error() -> None:
    assert {error.problem for error in ERRORS} == set(PROBLEMS.values())


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_each_error_class_has_a_code_in_replies_that_the_client_reads(error: type[ApplicationError]) -> None:
    raised = error.__new__(error)
    Exception.__init__(raised, "why")
    reply = problem_reply(raised, process="searcher")
    assert problem_reply(error_of(reply), process="client") == ProblemReply(fault=reply.fault, detail=reply.detail)
