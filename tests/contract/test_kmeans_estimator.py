"""hetero.KMeans: among scikit-learn's estimators, and without scikit-learn."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import fakes
import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist

import hetero
import hetero.ops.kmeans.compiled_cpu  # as after some fits

X = np.random.default_rng(0).random((60, 3))


def test_in_a_pipeline_and_a_search():
    pytest.importorskip("sklearn")
    from sklearn.base import clone
    from sklearn.cluster import KMeans
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    def fitted(kind):
        pipeline = make_pipeline(StandardScaler(), kind(4, random_state=0))
        return clone(pipeline).fit(X)

    ours, theirs = fitted(hetero.KMeans), fitted(KMeans)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))
    np.testing.assert_allclose(ours.transform(X), theirs.transform(X))
    np.testing.assert_allclose(ours.score(X), theirs.score(X))
    search = GridSearchCV(hetero.KMeans(random_state=0), {"n_clusters": [2, 5]}, cv=2).fit(X)
    assert search.best_params_ == {"n_clusters": 5}


def test_parameters_and_defaults_are_scikit_learns():
    pytest.importorskip("sklearn")
    from sklearn.cluster import KMeans

    ours, theirs = hetero.KMeans().get_params(), KMeans().get_params()
    assert {name: ours[name] for name in theirs} == theirs
    assert set(ours) - set(theirs) == {"device", "method", "label_tol"}


def test_label_tol_ends_a_fit_as_that_of_the_function():
    rows = np.random.default_rng(1).random((500, 3))
    options = {"init": rows[:7], "tol": 0.0}
    fitted = hetero.KMeans(7, label_tol=0.05, **options).fit(rows)
    assert fitted.n_iter_ == hetero.kmeans(rows, 7, label_tol=0.05, **options)[2]["iterations"]
    assert fitted.n_iter_ < hetero.KMeans(7, **options).fit(rows).n_iter_


def test_device_and_method_are_those_asked_for():
    fitted = hetero.KMeans(3, random_state=0, device="cpu", method="products").fit(X)
    assert (fitted.info_["device"], fitted.info_["method"]) == ("cpu", "products")
    with pytest.raises(ValueError, match="method must be one of"):
        hetero.KMeans(3, method="none").fit(X)


def test_verbose_tells_of_each_start(capsys):
    fitted = hetero.KMeans(3, random_state=0, n_init=2, verbose=1).fit(X)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["start 0", "start 1"]
    assert any(f"after {fitted.n_iter_} iterations" in line for line in lines)


def test_arrays_in_are_arrays_out(monkeypatch):
    device = fakes.install(monkeypatch)[0]
    there = fakes.Cupy.of(X, device)
    fitted = hetero.KMeans(4, random_state=0, device="cpu").fit(there)
    expected = hetero.KMeans(4, random_state=0).fit(X)
    for found, wanted in (
        (fitted.labels_, expected.labels_),
        (fitted.cluster_centers_, expected.cluster_centers_),
        (fitted.predict(there), expected.labels_),
        (fitted.transform(there), expected.transform(X)),
    ):
        assert isinstance(found, fakes.Cupy)
        np.testing.assert_array_equal(found.get(), wanted)
    np.testing.assert_array_equal(fitted.predict(X), expected.labels_)  # the other way round
    with pytest.raises(ValueError, match="X has 2 features, but KMeans is expecting 3"):
        fitted.predict(fakes.Cupy.of(X[:, :2].copy(), device))


def test_a_dtype_that_is_not_numpys(monkeypatch):
    """As torch's: NumPy cannot make anything of it."""
    there = fakes.Array.of(X, fakes.install(monkeypatch)[0])

    class Foreign:
        __cuda_array_interface__ = there.__cuda_array_interface__
        shape, dtype = there.shape, "the library's own float64"

    plan = hetero.plan("kmeans", Foreign(), 4)
    assert plan.problem.dtype == "float64"
    assert plan.problem.inputs[0].location == "cuda:0"


def test_without_scikit_learn():
    script = """
        import sys
        sys.modules["sklearn"] = sys.modules["sklearn.base"] = None
        import numpy as np, hetero
        X = np.random.default_rng(0).random((60, 3))
        made = hetero.KMeans(4, random_state=0)
        try:
            made.predict(X)
        except ValueError as error:
            assert "not fitted yet" in str(error)
        else:
            raise AssertionError
        assert made.get_params()["n_clusters"] == 4
        assert repr(made) == "KMeans(n_clusters=4, random_state=0)", repr(made)
        labels = made.fit_predict(X)
        assert (made.predict(X) == labels).all() and made.fit_transform(X).shape == (60, 4)
        assert made.set_params(n_clusters=3).fit(X).cluster_centers_.shape == (3, 3)
        try:
            made.set_params(clusters=3)
        except ValueError as error:
            assert "Invalid parameter 'clusters'" in str(error)
        else:
            raise AssertionError
        print(made.inertia_)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    expected = hetero.KMeans(3, random_state=0).fit(X).inertia_
    np.testing.assert_allclose(float(done.stdout), expected)


@pytest.mark.parametrize("method", ["lloyd", "products", "opencl"])
def test_a_label_does_not_depend_on_the_other_rows(method, request):
    """A prediction of fewer rows than clusters, and one beside a row that is far from all."""
    where = {"device": "cpu", "method": method}
    if method == "opencl":
        where = {"device": request.getfixturevalue("opencl")}
    for dtype, far in (("float32", 1e7), ("float64", 1e30)):
        rows = (100 + 10 * np.random.default_rng(3).standard_normal((500, 5))).astype(dtype)
        fitted = hetero.KMeans(10, random_state=0, **where).fit(rows)
        labels = fitted.predict(rows)
        assert (labels != fitted.labels_).sum() <= 1
        np.testing.assert_array_equal(fitted.predict(rows[:3]), labels[:3])
        nearest = fitted.transform(rows[:1]).min()
        np.testing.assert_allclose(fitted.score(rows[:1]), -(nearest**2), rtol=1e-4)
        rows[0, 0] = far
        np.testing.assert_array_equal(fitted.predict(rows)[1:], labels[1:])


@pytest.mark.parametrize("fitted", ["float32", "float64"])
@pytest.mark.parametrize("given", ["float32", "float64", "int32"])
def test_transform_has_scikit_learns_dtype(fitted, given):
    from sklearn.cluster import KMeans

    X = np.random.default_rng(0).integers(0, 99, (50, 3)).astype(fitted)
    ours, theirs = (kind(3, random_state=0).fit(X) for kind in (hetero.KMeans, KMeans))
    found, expected = (made.transform(X.astype(given)) for made in (ours, theirs))
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("given", [np.asarray, csr_array])
@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 1e-6), ("float64", 1e-8)])
def test_distances_far_from_zero_and_near_to_centroids(given, dtype, rtol):
    far = 0.0 if given is csr_array else 1e4
    rows = (far + np.random.default_rng(0).random((700, 9))).astype(dtype)
    fitted = hetero.KMeans(12, init=rows[::60], n_init=1, max_iter=20).fit(given(rows))
    rows[3], rows[4] = fitted.cluster_centers_[5:7]
    rows[4, 0] *= 1.0001
    expected = cdist(rows.astype("f8"), fitted.cluster_centers_.astype("f8"))
    apart = fitted.transform(given(rows))
    np.testing.assert_allclose(apart, expected, rtol=rtol)
    assert apart[3, 5] == 0.0


def test_an_unknown_algorithm_is_refused_and_elkan_for_one_cluster_told():
    X = np.random.default_rng(0).random((20, 3))
    for wrong in ("full", None, 3):
        with pytest.raises(ValueError, match=f"'algorithm' .* {{.*}}. Got {wrong!r} instead"):
            hetero.KMeans(2, algorithm=wrong).fit(X)
    one = hetero.KMeans(1, algorithm="elkan")
    for fit in (one.fit, one.fit_predict):
        with pytest.warns(RuntimeWarning, match="doesn't make sense for a single cluster") as given:
            fit(X)
        assert given[0].filename == __file__
