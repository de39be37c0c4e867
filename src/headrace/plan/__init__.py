"""Planning: what the user asked for, who does which part of it, and why."""

from headrace.plan.explain import explain
from headrace.plan.physical import Decision, NativePlan, Plan, PythonPlan, make_plan

__all__ = ["Decision", "NativePlan", "Plan", "PythonPlan", "explain", "make_plan"]
