"""CreateAcls, DescribeAcls, DeleteAcls: access control lists of resources (KIP-140, KIP-290)."""

from __future__ import annotations

from ..message import Request, Response, Struct, field
from ..wire import Error, Int8, Int32, String


class AclCreationResult(Struct):
    """The outcome of one ACL, in the order of the request."""

    error_code: Error
    error_message: String | None = field(nullable=0)


class CreateAclsResponse(Response):
    """One result for each ACL."""

    throttle_time_ms: Int32
    results: list[AclCreationResult]


class AclCreation(Struct):
    """One ACL. The numbers are those of Java's ResourceType, PatternType, AclOperation and
    AclPermissionType.
    """

    resource_type: Int8
    resource_name: String
    resource_pattern_type: Int8 = field(since=1, default=3)
    principal: String
    host: String
    operation: Int8
    permission_type: Int8


class CreateAclsRequest(Request[CreateAclsResponse], api_key=30, versions=(1, 3), flexible=2):
    """Sent to any broker, which forwards it to the controller."""

    creations: list[AclCreation]


class AclDescription(Struct):
    """One ACL of a resource."""

    principal: String
    host: String
    operation: Int8
    permission_type: Int8


class DescribeAclsResource(Struct):
    """A resource pattern and its ACLs."""

    resource_type: Int8
    resource_name: String
    pattern_type: Int8 = 3
    acls: list[AclDescription]


class DescribeAclsResponse(Response):
    """The ACLs that match the filter, by resource."""

    throttle_time_ms: Int32
    error_code: Error
    error_message: String | None
    resources: list[DescribeAclsResource]


class DescribeAclsRequest(Request[DescribeAclsResponse], api_key=29, versions=(1, 3), flexible=2):
    """A filter: null and 1 (any) match everything."""

    resource_type_filter: Int8
    resource_name_filter: String | None
    pattern_type_filter: Int8 = 3
    principal_filter: String | None
    host_filter: String | None
    operation: Int8
    permission_type: Int8


class DeleteAclsMatchingAcl(Struct):
    """An ACL that was deleted, or could not be."""

    error_code: Error
    error_message: String | None
    resource_type: Int8
    resource_name: String
    pattern_type: Int8 = 3
    principal: String
    host: String
    operation: Int8
    permission_type: Int8


class DeleteAclsFilterResult(Struct):
    """The outcome of one filter."""

    error_code: Error
    error_message: String | None
    matching_acls: list[DeleteAclsMatchingAcl]


class DeleteAclsResponse(Response):
    """One result per filter."""

    throttle_time_ms: Int32
    filter_results: list[DeleteAclsFilterResult]


class DeleteAclsFilter(Struct):
    """A filter of the ACLs to delete, as in DescribeAcls."""

    resource_type_filter: Int8
    resource_name_filter: String | None
    pattern_type_filter: Int8 = 3
    principal_filter: String | None
    host_filter: String | None
    operation: Int8
    permission_type: Int8


class DeleteAclsRequest(Request[DeleteAclsResponse], api_key=31, versions=(1, 3), flexible=2):
    """Sent to any broker, which forwards it to the controller."""

    filters: list[DeleteAclsFilter]
