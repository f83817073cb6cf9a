"""Which columns a frame has, as Spark types and as Arrow types."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from rmqcore.errors import ConfigError
from rmqcore.native.columns._columns import NULLABLE, ColumnDecoder
from rmqcore.scan import COLUMNS, DEFAULT_COLUMNS, FULL_COLUMNS, LIGHT_COLUMNS
from rmqcore.spark.options import ReadOptions, unknown

BROKER = "broker"
SETS = {"light": LIGHT_COLUMNS, "default": DEFAULT_COLUMNS, "full": FULL_COLUMNS}


def spark_schema() -> StructType:
    """Every column there is; what every message has is not nullable, which saves Spark checks."""
    fields = from_arrow_schema(pa.schema(ColumnDecoder(COLUMNS, row_max=1).take())).fields
    for field in fields:
        field.nullable = field.name in NULLABLE
    return StructType([*fields, StructField(BROKER, StringType(), nullable=False)])


def chosen_columns(options: ReadOptions) -> tuple[str, ...]:
    """Names of the columns that the options ask for.

    Raises:
        ConfigError: an unknown column, or one named twice.
    """
    text = (options.columns or "default").strip()
    names = list(SETS.get(text.lower(), ()))
    if not names:
        names = [name.strip() for name in text.split(",")]
        for name in names:
            if name not in (*COLUMNS, BROKER):
                raise unknown("column", name, (*SETS, *COLUMNS, BROKER))
    extra = [
        ("properties", options.include_properties),
        ("crc_ok", options.verify_crc == "flag"),
        (BROKER, options.show_broker),
    ]
    names += [name for name, wanted in extra if wanted and name not in names]
    if len(set(names)) < len(names):
        raise ConfigError("columns", text, "a column is named twice")
    return tuple(names)


def schema_of(columns: tuple[str, ...]) -> StructType:
    """The Spark schema of some columns."""
    known = spark_schema()
    return StructType([known[name] for name in columns])


def checked_columns(schema: StructType) -> pa.Schema:
    """The columns of a schema that the user gave, as a task has to deliver them.

    Raises:
        ConfigError: a column that there is not, another type, or NOT NULL where nulls may be.
    """
    known = {field.name: field for field in spark_schema().fields}
    for field in schema.fields:
        if field.name not in known:
            raise unknown("column", field.name, known)
        right = known[field.name].dataType.simpleString()
        if field.dataType.simpleString() != right:
            raise ConfigError(
                f"column {field.name}", field.dataType.simpleString(), f"its type is {right}"
            )
        if known[field.name].nullable and not field.nullable:
            raise ConfigError(
                f"column {field.name}", "NOT NULL", "some messages have none; leave NOT NULL out"
            )
    arrow = pa.schema([*pa.schema(ColumnDecoder(COLUMNS, row_max=1).take()), (BROKER, pa.string())])
    return pa.schema([arrow.field(f.name).with_nullable(f.nullable) for f in schema.fields])
