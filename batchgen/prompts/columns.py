"""One Arrow schema for files that differ in ways that do not matter, and the checks that a column can be what a job
says it is.

Files may differ in column order, nullability, columns of nulls, dictionary encoding, the kind of string (then all
become large_string) and fields of structs (missing ones become null). Any other difference is refused: values are never
converted.
"""

import difflib
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from batchgen.errors import InputError
from batchgen.prompts.files import InputFile

# Positions of rows, ascending.
Rows = np.ndarray[tuple[int], np.dtype[np.int64]]

_FIELD_ID = b"PARQUET:field_id"


def require_unique_names(file: InputFile, schema: pa.Schema) -> None:
    """Raises InputError if a file has two columns of one name."""
    repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if repeated:
        raise InputError(f"{file.path}: has more than one column named {', '.join(repeated)}; rename them")


def require_column(schema: pa.Schema, name: str, key: str, source: object) -> pa.Field:
    """The field that `key` of the job names; raises InputError with the nearest column if there is none."""
    if name in schema.names:
        return schema.field(name)
    near = difflib.get_close_matches(name, schema.names, n=1)
    hint = f"did you mean {near[0]}" if near else f"its columns are {', '.join(schema.names) or 'none'}"
    raise InputError(f"{source}: no column {name}, which {key} names; {hint}")


def unify(files: Sequence[InputFile], schemas: Sequence[pa.Schema], names: Iterable[str]) -> pa.Schema:
    """The schema of these columns over all files. Raises InputError, naming two files, if there is none."""
    fields: list[pa.Field] = []
    for name in names:
        field, source = schemas[0].field(name), files[0]
        for file, schema in zip(files[1:], schemas[1:], strict=True):
            if name not in schema.names:
                raise InputError(
                    f"{file.path}: no column {name}, which {files[0].path} has; name the columns to carry in input.keep"
                )
            merged = _unify_types(field.type, schema.field(name).type)
            if merged is None or not all(_can_become(each, merged) for each in (field.type, schema.field(name).type)):
                raise InputError(
                    f"input.path: the type of column {name} is {field.type} in {source.path} "
                    f"and {schema.field(name).type} in {file.path}; write the files with one type"
                )
            source = source if merged == field.type else file
            field = field.with_type(merged).with_nullable(field.nullable or schema.field(name).nullable)
        fields.append(_without_field_id(field))
    return pa.schema(fields)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch's columns in the order and types of a schema that `unify` gave."""
    columns = []
    for field in schema:
        column = batch.column(field.name)
        columns.append(_as_type(column, field.type))
    if not columns:
        return batch.select([])
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def take_rows(batch: pa.RecordBatch, rows: Sequence[int] | Rows) -> pa.RecordBatch:
    """Some rows of a batch, in ascending order; for every Arrow type, where `take` lacks some."""
    numbers = np.asarray(rows, dtype=np.int64)
    if len(numbers) == batch.num_rows:
        return batch
    if len(numbers) == 0 or batch.num_columns == 0:
        return batch.slice(0, len(numbers))
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    return pa.concat_batches([batch.slice(int(run[0]), len(run)) for run in runs])


def is_text(kind: pa.DataType) -> bool:
    """Whether values are strings, dictionary-encoded or not; a column of nulls is a text column without text."""
    return is_string(kind) or pat.is_null(kind) or (pat.is_dictionary(kind) and is_string(kind.value_type))


def is_string(kind: pa.DataType) -> bool:
    """Whether an Arrow type is one of the kinds of string."""
    return bool(pat.is_string(kind) or pat.is_large_string(kind) or pat.is_string_view(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Whether an Arrow type is bytes without an encoding."""
    return bool(
        pat.is_binary(kind) or pat.is_large_binary(kind) or pat.is_fixed_size_binary(kind) or pat.is_binary_view(kind)
    )


def _as_type(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    return pa.nulls(len(column), kind) if pat.is_null(column.type) else column.cast(kind)


def _can_become(kind: pa.DataType, target: pa.DataType) -> bool:
    """Whether Arrow has the cast; asked of no values."""
    try:
        _as_type(pa.nulls(0, kind), target)
    except pa.ArrowNotImplementedError:
        return False
    return True


def _unify_types(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if one == other and not pat.is_nested(one):
        return one
    if pat.is_null(one) or pat.is_null(other):
        return other if pat.is_null(one) else one
    if is_string(one) and is_string(other):
        return pa.large_string()
    if pat.is_dictionary(one) or pat.is_dictionary(other):
        return one if one == other else _unify_types(_decoded(one), _decoded(other))
    if pat.is_struct(one) and pat.is_struct(other):
        return _unify_structs(one, other)
    if pat.is_map(one) and pat.is_map(other):
        return _unify_parts(pa.map_, one, other, "key_type", "item_type")
    for is_kind, make in ((pat.is_list, pa.list_), (pat.is_large_list, pa.large_list)):
        if is_kind(one) and is_kind(other):
            return _unify_lists(make, one, other)
    return one if one == other else None


def _decoded(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pat.is_dictionary(kind) else kind


def _unify_structs(one: pa.StructType, other: pa.StructType) -> pa.DataType | None:
    fields = {field.name: field for field in one}
    for field in other:
        mine = fields.get(field.name)
        merged = field.type if mine is None else _unify_types(mine.type, field.type)
        if merged is None:
            return None
        nullable = mine is None or mine.nullable or field.nullable
        fields[field.name] = pa.field(field.name, merged, nullable)
    theirs = {field.name for field in other}
    return pa.struct([field if field.name in theirs else field.with_nullable(True) for field in fields.values()])


def _unify_lists(make: Callable[[pa.Field], pa.DataType], one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    merged = _unify_types(one.value_type, other.value_type)
    if merged is None:
        return None
    nullable = one.value_field.nullable or other.value_field.nullable
    return make(one.value_field.with_type(merged).with_nullable(nullable))


def _unify_parts(
    make: Callable[..., pa.DataType], one: pa.DataType, other: pa.DataType, *parts: str
) -> pa.DataType | None:
    merged = [_unify_types(getattr(one, part), getattr(other, part)) for part in parts]
    return None if None in merged else make(*merged)


def _without_field_id(field: pa.Field) -> pa.Field:
    """Numbers that a Parquet writer gave to columns mean nothing in another file."""
    metadata = {key: value for key, value in (field.metadata or {}).items() if key != _FIELD_ID}
    return field.with_metadata(metadata or None)
