"""SciPy's and scikit-learn's functions under `hetero.install`: what is taken, what is not."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import itertools
import pickle
import sys
import time
import types

import numpy as np
import pytest
import scipy.ndimage
import scipy.signal
import scipy.sparse as sp
import scipy.sparse.linalg

import hetero
from hetero import accel, paths
from hetero.accel import functions, products
from hetero.accel import session as sessions
from hetero.accel.session import GAIN, LOADING, SAVED, Attempt, Loading, Session
from hetero.pricing.plan import Candidate
from hetero.profile import inventory

SHAPES = (40, 50), (5, 7), (300, 310), (400, 3)
IMAGE, KERNEL, LARGE, X = map(np.random.default_rng(1).random, SHAPES)
SIGNAL = ("convolve2d", "correlate2d", "fftconvolve", "oaconvolve", "convolve")


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_convolutions(noted, mode):
    for name, kernel in itertools.product(SIGNAL, (KERNEL, KERNEL[:4, :6])):
        call = functools.partial(getattr(scipy.signal, name), LARGE, kernel, mode=mode)
        other_centre = name == "correlate2d" and mode == "same" and kernel is not KERNEL
        assert noted(call).code == ("option" if other_centre else "taken")


def test_filters_and_what_has_another_meaning(noted):
    signal, ndimage, single = scipy.signal, scipy.ndimage, LARGE.astype("f4")
    calls = [
        (lambda: signal.fftconvolve(KERNEL, LARGE, mode="same"), "option"),
        (lambda: signal.fftconvolve(LARGE, KERNEL, axes=(0, 1)), "option"),
        (lambda: signal.fftconvolve(LARGE, KERNEL.astype("f4")), "dtype"),
        (lambda: ndimage.convolve(LARGE, KERNEL, origin=1), "option"),
        (lambda: ndimage.convolve(LARGE, KERNEL[:4]), "option"),
        (lambda: ndimage.convolve(single, KERNEL.astype("f4")), "dtype"),
        (lambda: ndimage.correlate(input=LARGE, weights=KERNEL), "taken"),
        (lambda: signal.fftconvolve(in1=LARGE, in2=KERNEL), "taken"),
        (lambda: signal.fftconvolve(np.where(LARGE > 0.99, np.nan, LARGE), KERNEL), "not-finite"),
    ]
    for mode in ("reflect", "constant", "wrap", "nearest", "mirror"):
        call = functools.partial(ndimage.convolve, LARGE, KERNEL, mode=mode, cval=2.0)
        calls.append((call, "option" if mode in ("nearest", "mirror") else "taken"))
    for call, code in calls:
        assert noted(call).code == code
    with pytest.raises(ValueError, match="method"):
        signal.convolve(LARGE, KERNEL, method=None)


def test_cg(noted):
    A, b = hetero.Poisson((30, 30)).tocsr(), np.ones(900)
    cg = scipy.sparse.linalg.cg
    assert noted(lambda: cg(A, b, rtol=1e-12)[0]).code == "taken"
    inverse = sp.diags_array(1 / A.diagonal())
    assert noted(lambda: cg(A, b, rtol=1e-12, M=inverse)[0]).code == "taken"
    assert cg(A, b, maxiter=3)[1] == 3
    assert cg(sp.eye_array(900), b, maxiter=1)[1] == 1  # which converged in the last one
    assert noted(lambda: cg(A, b, rtol=0, maxiter=9)[0]).code == "option"
    seen = []
    assert noted(lambda: cg(A, b, callback=seen.append)[0]).code == "option"
    assert seen


@pytest.mark.filterwarnings("error")
def test_a_solve_that_fails_warns_as_scipys(all_calls):
    scipy.sparse.linalg.cg(-hetero.Poisson((30, 30)).tocsr(), np.ones(900))
    assert accel.last().code == "not-finite"


@pytest.mark.parametrize("as_given", [np.asarray, np.ndarray.tolist])
def test_kmeans_of_a_table_and_then_of_an_array(all_calls, as_given):
    cluster = pytest.importorskip("sklearn.cluster")
    estimator = cluster.KMeans(5, init=as_given(X[:5]), n_init=3)
    estimator.feature_names_in_ = np.array(["a", "b", "c"], object)
    with pytest.warns(RuntimeWarning, match="only one init") as given:
        estimator.fit(X)
    assert accel.last().code == "taken"
    assert len(given) == 1
    assert not hasattr(estimator, "feature_names_in_")
    with pytest.warns(UserWarning, match="distinct clusters") as given:
        cluster.KMeans(5).fit(np.ones((40, 3)))
    assert (accel.last().code, given[0].filename) == ("taken", __file__)


def test_kmeans(all_calls):
    cluster = pytest.importorskip("sklearn.cluster")

    class Own(cluster.KMeans):
        pass

    fitted = cluster.KMeans(5, init=X[:5], random_state=0).fit(X)
    assert accel.last().code == "taken"
    for other in (
        Own(5, init=X[:5], random_state=0).fit(X),
        cluster.KMeans(5, init=X[:5]).fit(sp.csr_array(X)),
    ):
        assert accel.last().code == "type"
        for name in ("cluster_centers_", "labels_", "inertia_", "n_features_in_"):
            np.testing.assert_allclose(getattr(fitted, name), getattr(other, name), rtol=1e-9)
        assert vars(fitted).keys() == vars(other).keys()
    assert (fitted.predict(X) == fitted.labels_).all()
    assert b"hetero" not in pickle.dumps(fitted)


def test_results_are_on_the_host_whatever_the_script_asks_of_heteros(all_calls, opencl):
    fit = pytest.importorskip("sklearn.cluster").KMeans(2, n_init=1).fit
    with hetero.use(device=opencl, results="device"):
        assert type(fit(IMAGE).cluster_centers_) is np.ndarray
        assert type(scipy.sparse.linalg.cg(np.eye(3), np.ones(3))[0]) is np.ndarray
    assert accel.last().code == "taken"


def test_what_a_signal_handler_raises_reaches_the_script_once(all_calls, alarm):
    fit = pytest.importorskip("sklearn.cluster").KMeans(16, n_init=1).fit
    r = np.random.default_rng(0)
    A, X = hetero.Poisson((200, 200)).tocsr(), r.random((20000, 16))
    solve = functools.partial(scipy.sparse.linalg.cg, A, r.random(40000), rtol=1e-10)
    for call in (solve, lambda: fit(X)):
        least = min((call(), accel.last().seconds)[1] for _ in range(4))
        note = accel.last()
        assert note.code == "taken"
        for share in (0.05, 0.2):
            with pytest.raises(TimeoutError, match="late"):
                alarm(share * least, call)
            assert accel.last() is note


def test_names_imported_meanwhile_come_back(monkeypatch):
    held, package = scipy.sparse.linalg.cg, types.ModuleType("scipy.later")
    with hetero.install():
        package.cg = scipy.sparse.linalg.cg
        monkeypatch.setitem(sys.modules, "scipy.later", package)
        importlib.reload(scipy.sparse.linalg)
        assert scipy.sparse.linalg.cg.__wrapped__ is held
    assert package.cg is scipy.sparse.linalg.cg is held


def test_names_imported_before_are_listed(monkeypatch):
    monkeypatch.setitem(globals(), "mine", scipy.signal.fftconvolve)
    with hetero.install() as installed:
        assert [x for x in installed.missed if __name__ in x] == [f"{__name__}.mine"]


def test_modules_that_are_not_loaded_yet_stay_so(monkeypatch, tmp_path):
    (tmp_path / "later.py").write_text("raise ImportError('not now')", "utf-8")
    spec = importlib.util.spec_from_file_location("later", tmp_path / "later.py")
    spec.loader = importlib.util.LazyLoader(spec.loader)
    lazy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(lazy)
    monkeypatch.setitem(sys.modules, "scipy.later", lazy)
    with hetero.install():
        pass
    with pytest.raises(ImportError, match="not now"):
        lazy.anything  # noqa: B018


def test_stand_ins_look_like_what_they_stand_for():
    held, dot = scipy.signal.convolve2d, np.dot
    with hetero.install(recording=True):
        function = scipy.signal.convolve2d
        assert function is scipy.signal._signaltools.convolve2d is not held
        assert np.dot is not dot
        assert inspect.isfunction(function)
        assert isinstance(np.dot, type(np.sum))
        assert (str(np.dot), repr(function)) == (str(dot), repr(held))
        assert inspect.signature(function) == inspect.signature(held)
        bytes_there = [pickle.dumps(one) for one in (np.dot, function)]
    bytes_later = [pickle.dumps(one) for one in (dot, held)]
    assert bytes_there == bytes_later
    with hetero.install():  # another one
        assert pickle.loads(pickle.dumps(function)) is scipy.signal.convolve2d is function


def test_scikit_learn_finds_what_a_fit_takes():
    cluster = pytest.importorskip("sklearn.cluster")
    fit, routing = cluster.KMeans.fit, str(cluster.KMeans().get_metadata_routing())
    with hetero.install():
        assert cluster.KMeans.fit is not fit
        assert pickle.loads(pickle.dumps(cluster.KMeans.fit)) == fit
        assert str(cluster.KMeans().get_metadata_routing()) == routing
        assert "'sample_weight': None" in routing


def test_small_calls_are_not_looked_at_however_they_are_written(monkeypatch):
    asked = []
    monkeypatch.setattr(functions, "looks", asked.append)
    monkeypatch.setattr(products, "looks", asked.append)
    A, b = np.eye(3), np.ones(3)
    with hetero.install(recording=True):
        np.dot(A, A)
        np.einsum("ij,jk", A, A)
        scipy.signal.convolve2d(in1=IMAGE, in2=KERNEL)
        scipy.ndimage.convolve(IMAGE, weights=KERNEL)
        scipy.sparse.linalg.cg(A, b=b)
        assert asked == []
        scipy.signal.fftconvolve(LARGE, in2=KERNEL)
        scipy.sparse.linalg.cg(np.eye(40), b=np.ones(40))
    assert len(asked) == 2


# -- Who decides -----------------------------------------------------------------------------------


class Plan:
    chosen, candidates = Candidate("cpu", "quick", 1e-3, {}, None, None), ()
    kept = ()


def attempt(seconds, what="4x4", **more):
    given = {"plan": Plan, "compute": lambda plan: "hetero's", **more}
    return Attempt(what, seconds, **given)


def plain():
    time.sleep(0.04)
    return "plain"


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """Runs of one script: a function that ends the run so far and begins the next one.

    It may end in another process.
    """
    script, ends = types.ModuleType("__main__"), []
    script.__file__ = __file__
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(inventory, "looked", lambda: False)
    monkeypatch.setitem(sys.modules, "__main__", script)
    monkeypatch.setattr(sessions.atexit, "register", lambda *end: ends.append(end))

    def run(*process):
        while ends:
            end, *given = ends.pop()
            end(*given[: len(given) - len(process)], *process)
        return Loading(False)

    return run


@pytest.mark.parametrize("has_gpu", [False, True])
def test_a_run_that_may_end_at_any_time_does_not_load_hetero(monkeypatch, runs, has_gpu):
    """Its calls pay for that, if it goes on; the next run knows that, by its first call."""
    monkeypatch.setattr(sessions, "has_device", lambda: has_gpu)
    enough = GAIN * LOADING[has_gpu] / SAVED[has_gpu]
    first = runs()
    assert not first.pays()
    for _ in range(10):
        first.count(0.11 * enough)
    now = time.perf_counter()
    with monkeypatch.context() as later:
        later.setattr(sessions.time, "perf_counter", lambda: now + 40)
        assert first.pays(), "3 % of it are more than what loading takes"
    assert runs().pays()
    paths.replace_file(paths.private_folder("profiles") / "new.json", b"")
    assert not runs().pays(), "by another profile it may gain otherwise"
    monkeypatch.setattr(sys, "argv", [*sys.argv, "other"])
    assert not runs().pays()


def test_a_run_whose_calls_gained_less_corrects_the_last_one(monkeypatch, runs):
    monkeypatch.setattr(sessions, "has_device", lambda: True)

    def spent(seconds, gained=None):
        run = runs()
        at_once = run.pays()
        run.count(seconds, gained)
        return at_once

    assert [spent(2.1), spent(2.3), spent(2.3, 2.0)] == [False, False, True]
    assert [spent(2.3, 1.9), spent(2.3), spent(3.0), spent(0.1)] == [True, False, False, True]
    assert not spent(3.0)
    runs()
    (file,) = (paths.cache_directory() / "accel").iterdir()
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert [spent(3.0), spent(0.1), spent(0.1)] == [False, True, False]


def test_what_the_plain_library_took_is_remembered_where_hetero_takes_every_call(monkeypatch, runs):
    """The one call took 13 s by it, which was guessed to be 0.1; in the end hetero is slower."""
    monkeypatch.setattr(sessions, "has_device", lambda: False)

    def at_once(taken):
        run = runs()
        if found := run.pays():
            run.count(0.1, 0.1 - taken, True)
        else:
            run.count(13.0)
        return found

    assert [at_once(1.0) for _ in range(4)] == [False, True, True, True]
    assert [at_once(20.0), at_once(1.0), at_once(1.0)] == [True, False, False]


def test_runs_of_no_scripts_and_of_forks_are_not_kept(monkeypatch, runs):
    for file in ("<stdin>", __file__):
        monkeypatch.setattr(sys.modules["__main__"], "__file__", file)
        run = runs()
        assert not run.pays()
        run.count(3.0)
    assert not runs(-1).pays(), "by a forked child"
    assert not [*paths.cache_directory().glob("accel/*")]


def test_the_first_short_calls_are_measured_and_slow_ones_go_back():
    session, codes = Session(), []
    session.loading.enough = 0.0

    def slow(plan):
        time.sleep(0.06)
        return "hetero's"

    for _ in range(8):
        session.run("f", attempt(0.05, compute=slow), plain)
        codes.append(session.book.last.code)
    assert codes == ["first"] * 2 + ["taken"] * 4 + ["slower"] * 2
    for _ in range(9):
        session.run("f", attempt(0.5, "9x9"), plain)
    codes = {row.code for row in session.book.rows() if row.what == "9x9"}
    assert codes == {"taken"}, "a long one at once, and a fast one from then on"


def test_a_slower_way_and_a_dry_run_leave_calls_to_the_library(monkeypatch):
    class Slow(Plan):
        chosen = Plan.chosen._replace(seconds=9.0)

    monkeypatch.setattr(inventory, "looked", lambda: False)
    for session, plan, code in (
        (Session(), Slow, "slower"),
        (Session(dry=True), Plan, "would-take"),
    ):
        session.loading.enough = 0.0
        assert session.run("f", attempt(0.5, plan=plan), plain) == "plain"
        assert session.book.last.code == code
        assert f"{code}: " in str(session.book)


@pytest.mark.parametrize("code", ["not-finite", "failed"])
def test_a_size_that_fails_is_left_alone(code):
    session, calls, broken = Session(), [], {"__name__": "hetero.broken", "sleep": time.sleep}
    session.loading.enough = 0.0

    def nothing(plan):
        calls.append(plan)
        return time.sleep(0.01)

    given = {"plan": eval("lambda: sleep(0.01) or 1 / 0", broken)} if code == "failed" else {}
    for _ in range(9):
        assert session.run("f", attempt(0.5, compute=nothing, **given), plain) == "plain"
    rows = {row.code: row.calls for row in session.book.rows()}
    assert (rows[code], rows["slower"] >= 4) == (4, True)
