"""Planning: what the user asked for, who does which part of it, and why."""

from headrace.plan.explain import explain
from headrace.plan.planner import make_plan
from headrace.plan.segments import Plan

__all__ = ["Plan", "explain", "make_plan"]
