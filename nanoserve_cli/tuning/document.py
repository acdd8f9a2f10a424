"""Everything that `tune` found as one JSON document."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nanoserve_cli.emit import Emission
from nanoserve_cli.policy_file import policy_document
from nanoserve_cli.tuning.candidates import Candidate
from nanoserve_cli.tuning.report import Entry, LoadReport, Shared
from nanoserve_cli.tuning.run import Tuned
from nanoserve_cli.tuning.scoring import Score

if TYPE_CHECKING:
    from nanoserve_cli.tuning.verify import Proof

SCHEMA_VERSION = 1


def document(tuned: Tuned, emission: Emission | None, proof: Proof | None) -> dict[str, Any]:
    """The report as plain values."""
    report, evidence = tuned.report, tuned.report.evidence
    eager = evidence.observed and evidence.observed.eager
    return {
        "schema_version": SCHEMA_VERSION,
        "source": evidence.label,
        "source_sha256": evidence.source_sha256,
        "kind": evidence.kind,
        "size": dict([evidence.size[::-1]]),
        "objective": report.objective.name,
        "max_batch_size": evidence.max_batch_size,
        "max_model_len": evidence.max_model_len,
        "budget_graphs": report.rules.budget,
        "eager": eager and asdict(eager),
        "notes": list(evidence.notes),
        "cautions": list(tuned.cautions),
        "loads": [_load(one) for one in report.loads],
        "shared": [_shared(one) for one in report.shared],
        "across": [_shared(one) for one in report.across],
        "minimax": report.search and {"regrets": list(report.search.regrets), "bound": report.search.bound},
        "step_time": tuned.step_time_fit
        and {"model": tuned.step_time_fit.model.render(), "errors": tuned.step_time_fit.errors},
        "settled": [
            {name: value for name, value in vars(one).items() if name != "candidate"} | {"list": one.candidate.name}
            for one in tuned.settled
        ],
        "baseline": _list(report.decision.baseline),
        "gains": list(report.decision.gains),
        "recommended": _list(report.decision.recommended)
        | {"reason": report.decision.reason, "policy": policy_document(report.decision.recommended.policy)},
        "emission": emission and asdict(emission),
        "proof": proof and _proof(proof),
    }


def _list(candidate: Candidate) -> dict[str, Any]:
    return {
        "list": candidate.name,
        "rows_ladder": candidate.rows_ladder,
        "width_ladder": candidate.width_ladder,
        "completed": candidate.completed,
        "fitted": candidate.is_fitted,
    }


def _load(one: LoadReport) -> dict[str, Any]:
    return {
        "factor": one.load.factor,
        "held_out": one.load.held is not None,
        "prior": one.fit.prior,
        "product_gap": one.fit.gap,
        "lists": [_entry(entry) for entry in (*one.others, *one.proposals)],
    }


def _entry(entry: Entry) -> dict[str, Any]:
    return _list(entry.candidate) | {
        "judged": _score(entry.judged),
        "fit": _score(entry.fit),
        "fitted_of_same_size": _score(entry.rival),
        "graphs_to_match": entry.matched,
    }


def _shared(one: Shared) -> dict[str, Any]:
    return _list(one.candidate) | {"scores": [_score(found) for found in one.scores]}


def _score(found: Score) -> dict[str, Any]:
    return asdict(found) | {"waste": found.waste, "total_waste": found.total_waste}


def _proof(proof: Proof) -> dict[str, Any]:
    return vars(proof) | {
        "candidate": proof.candidate.name,
        "baseline": proof.baseline.name,
        "ratio": asdict(proof.ratio),
        "partings": asdict(proof.partings),
    }
