import pickle
import string

import pytest

from spark_kafka_native.spark.error_conditions import CONDITIONS, KafkaConditionError


@pytest.mark.parametrize("name", CONDITIONS)
def test_every_condition_can_be_told(name):
    parameters = {
        field: f"<{field}>" for _, field, _, _ in string.Formatter().parse(CONDITIONS[name]) if field
    }
    error = KafkaConditionError(name, parameters, "A note.")
    assert str(error).startswith(f"[{name}] ")
    assert all(value in str(error) for value in parameters.values())
    assert "A note." in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert error.is_data_loss is name.startswith("KAFKA_DATA_LOSS")


def test_a_data_loss_says_what_spark_says():
    parameters = {"startOffset": 1, "endOffset": 9, "topicPartition": "t-0", "groupId": "g"}
    assert str(KafkaConditionError("KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE", parameters)) == (
        "[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Some data may have been lost because they are not "
        "available in "
        "Kafka any more; either the data was aged out by Kafka or the topic may have been deleted before all "
        "the data "
        "in the topic was processed. If you don't want your streaming query to fail on such cases, set the "
        "source "
        "option failOnDataLoss to false. Reason: Could not read records in offset [1, 9) for topic partition "
        "t-0 with "
        "consumer group g. SQLSTATE: 22000"
    )
