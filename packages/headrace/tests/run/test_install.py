"""`headrace.install()`, in programs of their own: it changes what torch's class creates in a process."""

from __future__ import annotations

import textwrap

import pytest

from support.python import run_python

START = """
import pickle
import pytest
import torch.utils.data
from torch.utils.data import DataLoader, Dataset
import headrace

class Derived(DataLoader):
    pass

class Numbers(Dataset):
    def __len__(self):
        return 10
    def __getitem__(self, index):
        return index
"""


def run(body: str) -> None:
    done = run_python(START + textwrap.dedent(body))
    assert done.returncode == 0, done.stderr


def test_names_imported_before_create_headraces_loaders() -> None:
    run(
        """
        headrace.install()
        for cls in (DataLoader, torch.utils.data.DataLoader):
            loader = cls(dataset=Numbers(), batch_size=4)
            assert isinstance(loader, headrace.DataLoader)
            assert isinstance(loader, DataLoader)
            assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        """
    )


def test_derived_classes_are_left_alone() -> None:
    run(
        """
        headrace.install()
        loader = Derived(Numbers(), 4)
        assert type(loader) is Derived and not isinstance(loader, headrace.DataLoader)
        assert sum(len(batch) for batch in loader) == 10
        own = headrace.DataLoader(Numbers(), 4)
        assert type(own) is headrace.DataLoader
        """
    )


def test_a_dataset_in_python_without_num_workers_stays_in_the_calling_thread() -> None:
    run(
        """
        headrace.install()
        assert DataLoader(Numbers(), 4).num_workers == 0
        assert DataLoader(Numbers(), 4, num_workers=2).num_workers == 2
        """
    )


def test_installing_twice_is_installing_once_and_uninstalling_restores_torch() -> None:
    run(
        """
        headrace.install()
        headrace.install()
        assert isinstance(DataLoader(Numbers(), 4), headrace.DataLoader)
        headrace.uninstall()
        loader = DataLoader(Numbers(), batch_size=4)
        assert type(loader) is DataLoader
        assert sum(len(batch) for batch in loader) == 10
        del loader
        headrace.install()
        assert isinstance(DataLoader(Numbers(), 4), headrace.DataLoader)
        """
    )


def test_a_loader_of_torch_that_exists_is_an_error() -> None:
    run(
        """
        loader = DataLoader(Numbers(), 4)
        with pytest.raises(headrace.ConfigError, match="1 DataLoader.s. of torch's exist already"):
            headrace.install()
        assert type(DataLoader(Numbers(), 4)) is DataLoader
        """
    )


def test_a_loader_of_torch_that_is_no_longer_used_is_no_error() -> None:
    run(
        """
        cycle = [DataLoader(Numbers(), 4)]
        cycle.append(cycle)
        del cycle
        headrace.install()
        """
    )


@pytest.mark.parametrize("cls", ["DataLoader", "Derived"])
def test_pickled_loaders_of_torch_stay_loaders_of_torch(cls: str) -> None:
    run(
        f"""
        kept = pickle.dumps({cls}(Numbers(), 4))
        headrace.install()
        loader = pickle.loads(kept)
        assert type(loader) is {cls}
        assert sum(len(batch) for batch in loader) == 10
        """
    )


def test_loaders_can_be_created_anew_with_the_arguments_that_torchs_class_got() -> None:
    """Lightning notes them, and gives them to the loader's own class beside a sampler for its ranks."""
    run(
        """
        import inspect
        noted, init = [], DataLoader.__init__

        def noting(loader, *args, **kwargs):
            noted.append((args, kwargs))
            init(loader, *args, **kwargs)

        DataLoader.__init__ = noting
        headrace.install()
        loader = DataLoader(Numbers(), 4, False)
        (args, kwargs), = noted
        other = type(loader)(*args, **{**kwargs, "sampler": [5, 4, 3]})
        assert [batch.tolist() for batch in other] == [[5, 4, 3]]
        assert "sampler" in inspect.signature(type(loader).__init__).parameters
        """
    )
