from pytest_ddpscale.suites.suite_report import SuiteReport
def whole_run_report(measured):
    print(measured.evidence.training)
    for r in measured.evidence.training.values():
        if r.is_complete: print(r.run.id, r.complete_s, r.outer_s, r.unexplained, r.spans_s, r.img_per_s, [e.accuracy for e in r.epochs])
    print(measured.evidence.errors)
    return SuiteReport("x", [])
