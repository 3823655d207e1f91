// What the store of queues says to HBase's Thrift2 gateway: a part of HBase's own hbase.thrift (Apache-2.0), with its
// numbers. What else the gateway sends is passed over.

struct TColumn {
  1: required binary family,
  2: optional binary qualifier
}

struct TColumnValue {
  1: required binary family,
  2: required binary qualifier,
  3: required binary value
}

struct TResult {
  1: optional binary row,
  2: required list<TColumnValue> columnValues
}

enum TDurability {
  USE_DEFAULT = 0,
  SYNC_WAL = 3,
  FSYNC_WAL = 4
}

struct TGet {
  1: required binary row
}

struct TPut {
  1: required binary row,
  2: required list<TColumnValue> columnValues,
  6: optional TDurability durability
}

struct TDelete {
  1: required binary row
}

struct TScan {
  1: optional binary startRow,
  2: optional binary stopRow,
  3: optional list<TColumn> columns,
  4: optional i32 caching,
  7: optional binary filterString,
  15: optional i32 limit
}

struct TTableName {
  1: optional binary ns,
  2: required binary qualifier
}

struct TColumnFamilyDescriptor {
  1: required binary name,
  2: optional map<binary, binary> attributes,
  10: optional i32 maxVersions,
  13: optional i32 timeToLive
}

struct TTableDescriptor {
  1: required TTableName tableName,
  2: optional list<TColumnFamilyDescriptor> columns
}

exception TIOError {
  1: optional string message,
  2: optional bool canRetry
}

exception TIllegalArgument {
  1: optional string message
}

service THBaseService {
  bool exists(1: required binary table, 2: required TGet tget) throws (1: TIOError io)

  void putMultiple(1: required binary table, 2: required list<TPut> tputs) throws (1: TIOError io)

  list<TDelete> deleteMultiple(1: required binary table, 2: required list<TDelete> tdeletes) throws (1: TIOError io)

  list<TResult> getScannerResults(1: required binary table, 2: required TScan tscan, 3: i32 numRows = 1)
    throws (1: TIOError io)

  bool tableExists(1: TTableName tableName) throws (1: TIOError io)

  TTableDescriptor getTableDescriptor(1: required TTableName table) throws (1: TIOError io)

  void createTable(1: required TTableDescriptor desc, 2: optional list<binary> splitKeys) throws (1: TIOError io)

  void enableTable(1: required TTableName tableName) throws (1: TIOError io)

  void disableTable(1: required TTableName tableName) throws (1: TIOError io)

  void deleteTable(1: required TTableName tableName) throws (1: TIOError io)
}
