"""A real Databend, embedded in this process, that calls a cluster's models as functions.

    pip install databend pyarrow
    python engine.py --uri 127.0.0.1:8421

Prints one line a step; the exit status is 1 when one failed. The engine is the package `databend`:
its own planner and its own client of function servers, over tables of its own. The models are those
of the tests: `text-embed`, `text-rerank`, `sklearn-columns` and `storyteller`. Needs scripts/get-udf.sh.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


def refused(context, statement, text):
    try:
        context.sql(statement).to_py_arrow()
    except Exception as error:  # The binding has no type of its own.
        expect(text in str(error), f"the message says '{text}': {error}")
        return
    raise AssertionError(f"this is refused with '{text}'")


def rows(context, statement):
    batches = context.sql(statement).to_py_arrow()
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def create(context, address, name, arguments, result, handler):
    context.sql(
        f"CREATE OR REPLACE FUNCTION {name} ({arguments}) RETURNS {result} "
        f"LANGUAGE python HANDLER = '{handler}' ADDRESS = '{address}'"
    ).to_py_arrow()


def functions_are_created(context, address):
    """The engine asks the server for the function, and compares its types."""
    text = "STRING NULL"
    create(context, address, "embed", text, "ARRAY(FLOAT NULL) NULL", "text-embed")
    create(context, address, "fits", f"{text}, {text}", "FLOAT NULL", "text-rerank")
    create(context, address, "story", text, text, "storyteller?max_tokens=4")
    return {"functions": 3}


def a_column_is_embedded(context, _):
    books = "(VALUES (1, 'a dog'), (2, 'a cat'), (3, 'a dog')) AS books (id, title)"
    got = rows(context, f"SELECT id, embed(title) FROM {books} ORDER BY id")
    expect([row[0] for row in got] == [1, 2, 3], f"every row: {got}")
    vectors = [row[1] for row in got]
    expect(vectors[0] == vectors[2] != vectors[1], "of its own text")
    return {"dimensions": len(vectors[0])}


def a_null_has_no_vector(context, _):
    statement = "SELECT embed(title) IS NULL FROM (VALUES ('a dog'), (NULL)) AS books (title)"
    got = sorted(row[0] for row in rows(context, statement))
    expect(got == [False, True], f"null for null: {got}")
    return {"rows": len(got)}


def pairs_are_ranked(context, _):
    statement = """
        SELECT title, fits('dog', title) AS fit
        FROM (VALUES ('dog'), ('a small sun'), ('a cat')) AS books (title) ORDER BY fit DESC
    """
    got = rows(context, statement)
    expect(len(got) == 3 and got[0][1] >= got[1][1] >= got[2][1], f"ordered: {got}")
    return {"first": got[0][0]}


def a_model_tells(context, _):
    ((told,),) = rows(context, "SELECT story('Once upon a time')")
    expect(told, "a story")
    return {"told": told}


def many_rows_keep_their_order(context, _):
    statement = """
        SELECT number % 7, embed('row ' || (number % 7)::STRING) FROM numbers(5000)
    """
    vectors, got = {}, rows(context, statement)
    for key, vector in got:
        expect(vectors.setdefault(key, vector) == vector, f"the vector of row {key}")
    expect(len(got) == 5000 and len(vectors) == 7, f"every row: {len(got)}, {len(vectors)}")
    return {"rows": len(got)}


def a_classifier_is_a_function_over_columns(context, address):
    """Of its label, and of the probability of one class. Names in a TUPLE of Databend's have no
    underscore, so a whole answer of this model is none of its types."""
    columns = "FLOAT NULL, FLOAT NULL, STRING NULL"
    model = "sklearn-columns"
    create(context, address, "survives", columns, "BIGINT NULL", f"{model}?output=output_label")
    chance = f"{model}?output=output_probability&class=1"
    create(context, address, "chance", columns, "FLOAT NULL", chance)
    people = """(VALUES (22, 7.25, 'Southampton'), (38, 171.2833, 'Cherbourg'), (NULL, 8, 'Cork'))
                AS people (age, fare, city)"""
    got = rows(context, f"SELECT age, survives(age, fare, city), chance(age, fare, city) "
                        f"FROM {people} ORDER BY fare")
    expect([row[1] for row in got] == [0, None, 1], f"a label for each row: {got}")
    expect(got[0][2] < 0.5 < got[2][2] <= 1 and got[1][2] is None, f"its probability: {got}")
    return {"rows": len(got)}


def what_does_not_fit_is_refused(context, address):
    def statement(handler, result):
        return (
            f"CREATE FUNCTION wrong (STRING) RETURNS {result} LANGUAGE python "
            f"HANDLER = '{handler}' ADDRESS = '{address}'"
        )

    refused(context, statement("no-such-model", "STRING"), "no-such-model")
    refused(context, statement("text-embed", "BIGINT"), "chema")
    return {"refused": 2}


STEPS = [
    functions_are_created,
    a_column_is_embedded,
    a_null_has_no_vector,
    pairs_are_ranked,
    a_model_tells,
    many_rows_keep_their_order,
    a_classifier_is_a_function_over_columns,
    what_does_not_fit_is_refused,
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--uri", required=True, help="host:port of a coordinator's Flight")
    address = f"http://{parser.parse_args().uri}"
    failed = False
    folder = tempfile.mkdtemp()
    # The engine reads these once, when it is loaded.
    os.environ["QUERY_ENABLE_UDF_SERVER"] = "true"
    os.environ["QUERY_UDF_SERVER_ALLOW_LIST"] = address
    os.environ["DATABEND_DATA_PATH"] = f"{folder}/data"
    os.environ["META_EMBEDDED_DIR"] = f"{folder}/meta"
    os.chdir(folder)
    from databend import SessionContext

    context = SessionContext()
    for step in STEPS:
        try:
            line = {"step": step.__name__, "ok": True, **step(context, address)}
        except Exception as error:  # Each step is reported, whatever it fails with.
            failed = True
            line = {"step": step.__name__, "ok": False, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(line, ensure_ascii=False), flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    # The engine's threads do not end by themselves.
    os._exit(1 if failed else 0)


if __name__ == "__main__":
    main()
