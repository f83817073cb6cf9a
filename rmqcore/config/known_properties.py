"""Every property name of RocketMQ's configuration classes, releases 4.6 to 5.5.

A name that stands here is never an error in a ``broker.conf``, also where it has no meaning for a
store. ``FIELDS_ONLY`` are fields without a setter: RocketMQ writes them when it dumps a broker's
configuration, and ignores them when it reads one.
Source: MessageStoreConfig, BrokerConfig, BrokerIdentity, NettyServerConfig, NettyClientConfig,
NamesrvConfig, AuthConfig (setters); TieredMessageStoreConfig; MixAll.java, object2Properties
(fields).
"""

from __future__ import annotations

from functools import cache

AUTH = """
    aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond authConfigPath
    authenticationEnabled authenticationMetadataProvider authenticationProvider
    authenticationStrategy authenticationWhitelist authorizationEnabled
    authorizationMetadataProvider authorizationProvider authorizationStrategy
    authorizationWhitelist clusterName configName initAuthenticationUser
    innerClientAuthenticationCredentials migrateAuthFromV1Enabled
    statefulAuthenticationCacheExpiredSecond statefulAuthenticationCacheMaxNum
    statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum
    userCacheExpiredSecond userCacheMaxNum userCacheRefreshSecond
"""
BROKER = """
    accountStatsEnable accountStatsPrintZeroValues ackMessageThreadPoolNums
    ackThreadPoolQueueCapacity aclEnable adminBrokerThreadPoolNums
    adminBrokerThreadPoolQueueCapacity allowRecallWhenBrokerNotWriteable appendAckAsync
    appendCkAsync asyncSendEnable autoCreateSubscriptionGroup autoCreateTopicEnable
    autoDeleteUnusedStats broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond
    brokerClusterName brokerConfigPath brokerElectionPriority brokerFastFailureEnable
    brokerHeartbeatInterval brokerIP1 brokerIP2 brokerId brokerName brokerNotActiveTimeoutMillis
    brokerPermission brokerTopicEnable cgColdReadThreshold channelExpiredTimeout
    checkSyncStateSetPeriod cleanOfflineBrokerInterval clearRetryTopicWhenDeleteTopic
    clientManageThreadPoolNums clientManagerThreadPoolQueueCapacity clusterTopicEnable
    coldCtrStrategyEnable commercialBaseCount commercialBigCount commercialEnable
    commercialSizePerMsg commercialTimerCount commercialTransCount compatibleWithOldNameSrv
    compressedRegister configBlackList configManagerVersion consumerFallbehindThreshold
    consumerManageThreadPoolNums consumerManagerThreadPoolQueueCapacity
    consumerOffsetUpdateVersionStep controllerAddr controllerHeartBeatTimeoutMills
    defaultMessageRequestMode defaultPopShareQueueNum defaultTopicQueueNums
    delayOffsetUpdateVersionStep disableConsumeIfConsumerReadSlowly enableBroadcastOffsetStore
    enableCalcFilterBitMap enableConnectionMetrics enableControllerMode enableCreateSysGroup
    enableDetailStat enableFastChannelEventProcess enableLagAndDlqMetrics enableLiteEventMode
    enableLitePopLog enableLmqStats enableMessageStoreMetrics enableMixedMessageType
    enableNetWorkFlowControl enableNotifyAfterPopOrderLockRelease
    enableNotifyBeforePopCalculateLag enablePopBatchAck enablePopBufferMerge enablePopLog
    enablePopMessageThreshold enablePopMetrics enablePropertyFilter enableRegisterProducer
    enableRemoteEscape enableRemotingMetrics enableRequestMetrics enableRetryTopicV2
    enableSingleTopicRegister enableSkipLongAwaitingAck enableSlaveActingMaster
    enableSplitMetadata enableSplitRegistration enableStatsMetrics enableTransactionMetrics
    endTransactionPoolQueueCapacity endTransactionThreadPoolNums estimateAccumulation
    expectConsumerNumUseFilter fetchControllerAddrByDnsLookup fetchNameSrvAddrByDnsLookup
    fetchNamesrvAddrByAddressServer fetchNamesrvAddrInterval filterDataCleanTimeSpan
    filterServerNums filterSupportRetry flushConsumerOffsetHistoryInterval
    flushConsumerOffsetInterval forceRegister forwardTimeout globalColdReadThreshold
    heartbeatThreadPoolNums heartbeatThreadPoolQueueCapacity highSpeedMode inBrokerContainer
    initPopOffsetByCheckMsgInMem isolateLogEnable listenPort liteEventCheckInterval
    liteEventFullDispatchDelayTime liteEventFullDispatchDelayTimeForWildcardGroup
    liteLagCountMetricsEnable liteLagLatencyCollectEnable liteLagLatencyMetricsEnable
    liteLagLatencyTopK litePullMessageEnable litePullMessageThreadPoolNums
    litePullThreadPoolQueueCapacity liteSubscriptionCheckInterval
    liteSubscriptionCheckTimeoutMills liteTtlCheckInterval loadBalancePollNameServerInterval
    loadBalanceProcessorThreadPoolNums loadBalanceThreadPoolQueueCapacity lockInStrictMode
    longPollingEnable maxClientEventCount maxDelayTime maxErrorRateOfBloomFilter
    maxLiteSubscriptionCount maxMessageFilterNumForNotification maxPopPollingSize
    maxStatsIdleTimeInMinutes messageStorePlugIn metricGrpcExporterIntervalInMills
    metricGrpcExporterTimeOutInMills metricLoggingExporterIntervalInMills
    metricsExportBatchMaxDataPoints metricsExporterType metricsGrpcExporterHeader
    metricsGrpcExporterTarget metricsInDelta metricsLabel metricsOtelCardinalityLimit
    metricsPromExporterHost metricsPromExporterPort minLiteTTl msgTraceTopicName namesrvAddr
    notifyConsumerIdsChangedEnable persistConsumerOffsetIncrementally popCkMaxBufferSize
    popCkOffsetMaxQueueSize popCkStayBufferTime popCkStayBufferTimeOut popConsumerFSServiceInit
    popConsumerKVServiceEnable popConsumerKVServiceInit popConsumerKVServiceLog
    popFromRetryProbability popFromRetryProbabilityForPriority popInflightMessageThreshold
    popLongPollingForceNotifyInterval popPollingMapExpireTimeSeconds popPollingMapSize
    popPollingSize popResponseReturnActualRetryTopic popReviveConcurrency popReviveMaxAttemptTimes
    popReviveMaxReturnSizePerRead popReviveSkipIfGroupAbsent printChannelGroups
    printChannelGroupsMinNum priorityOrderAsc processReplyMessageThreadPoolNums
    pullMessageThreadPoolNums pullThreadPoolQueueCapacity putMessageFutureThreadPoolNums
    putThreadPoolQueueCapacity queryMessageThreadPoolNums queryThreadPoolQueueCapacity
    realTimeNotifyConsumerChange recallMessageEnable recoverConcurrently recoverThreadPoolNums
    regionId registerBrokerTimeoutMills registerNameServerPeriod rejectPullConsumerEnable
    rejectTransactionMessage replyThreadPoolQueueCapacity retrieveMessageFromPopRetryTopicV1
    reviveAckWaitMs reviveInterval reviveMaxSlow reviveQueueNum reviveScanTime rocketmqHome
    sendHeartbeatTimeoutMillis sendMessageThreadPoolNums sendThreadPoolQueueCapacity
    serverLoadBalancerEnable shortPollingTimeMills skipPreOnline skipWhenCKRePutReachMaxTimes
    slaveReadEnable splitMetadataSize splitRegistrationSize startAcceptSendRequestTimeStamp
    storeReplyMessageEnable subscriptionExpiredTimeout syncBrokerMemberGroupPeriod
    syncBrokerMetadataPeriod syncControllerMetadataPeriod traceOn traceTopicEnable
    transactionCheckInterval transactionCheckMax transactionCheckRocksdbCoreThreads
    transactionCheckRocksdbMaxThreads transactionCheckRocksdbQueueCapacity
    transactionMetricFlushInterval transactionOpBatchInterval transactionOpMsgMaxSize
    transactionTimeOut transferMsgByHeap updateNameServerAddrPeriod
    useMessageFilterForNotification usePIDColdCtrStrategy useSeparateRetryQueue
    useServerSideResetOffset useSingleRocksDBForAllConfigs useStaticSubscription
    validateSystemTopicWhenUpdateTopic waitTimeMillsInAckQueue waitTimeMillsInAdminBrokerQueue
    waitTimeMillsInHeartbeatQueue waitTimeMillsInLitePullQueue waitTimeMillsInPullQueue
    waitTimeMillsInSendQueue waitTimeMillsInTransactionQueue
"""
BROKER_IDENTITY = """
    brokerClusterName brokerId brokerName inBrokerContainer
"""
MESSAGE_STORE = """
    accessMessageInMemoryHotRatio accessMessageInMemoryMaxRatio allAckInSyncStateSet
    appendTopicForTimerDeleteKey asyncLearner autoMessageVersionOnTopicLen
    batchDispatchRequestThreadPoolNums bitMapLengthConsumeQueueExt
    bottomMostCompressionTypeForConsumeQueueStore brokerRole checkCRCOnRecover
    checkCommitLogOffsetOnRecover cleanFileForciblyEnable cleanResourceInterval
    cleanRocksDBDirtyCQIntervalMin cleanSwapedMapInterval coldDataFlowControlEnable
    coldDataScanEnable combineAssignOffsetCQType combineCQEnableCheckSelf combineCQLoadingCQTypes
    combineCQMaxExtraSearchCommitLogFiles combineCQPreferCQType combineCQUseRocksdbForLmq
    commitCommitLogLeastPages commitCommitLogThoroughInterval commitIntervalCommitLog
    commitLogForceSwapMapInterval commitLogRecoverMaxNum commitLogSwapMapInterval
    commitLogSwapMapReserveFileNum compactionCqMappedFileSize compactionMappedFileSize
    compactionScheduleInternal compactionThreadNum correctLogicMinOffsetForceInterval
    correctLogicMinOffsetSleepInterval dLegerGroup dLegerPeers dLegerSelfId dataReadAheadEnable
    debugLockEnable defaultQueryMaxNum deleteCommitLogFilesInterval
    deleteConsumeQueueFilesInterval deleteFileBatchMax deleteWhen destroyMapedFileIntervalForcibly
    disappearTimeAfterStart diskFallRecorded diskMaxUsedSpaceRatio diskSpaceCleanForciblyRatio
    diskSpaceWarningLevelRatio dispatchCqCacheNum dispatchCqThreads dispatchFromSenderThread
    duplicationEnable enableAcceleratedRecovery enableAsyncReput enableAutoInSyncReplicas
    enableBatchPush enableBuildConsumeQueueConcurrently enableCleanExpiredOffset enableCompaction
    enableConsumeQueueExt enableDLegerCommitLog enableLmq enableLmqQuota
    enableLogConsumeQueueRepeatedlyBuildWhenRecover enableMultiDispatch enableRocksDBLog
    enableRunningFlagsInFlush enableScheduleAsyncDeliver enableScheduleMessageStats
    enabledAppendPropCRC fastFailIfNoBufferInStorePool fileReservedTime flushCommitLogLeastPages
    flushCommitLogThoroughInterval flushCommitLogTimed flushConsumeQueueLeastPages
    flushConsumeQueueThoroughInterval flushDelayOffsetInterval flushDiskType
    flushIntervalCommitLog flushIntervalConsumeQueue flushLeastPagesWhenWarmMapedFile
    forceVerifyPropCRC haFlowControlEnable haHousekeepingInterval haListenPort haMasterAddress
    haMaxGapNotInSync haMaxTimeSlaveNotCatchup haSendHeartbeatInterval haSlaveFallbehindMax
    haTransferBatchSize inSyncReplicas indexFileReadEnable indexFileWriteEnable indexRocksDBEnable
    iteratorWhenUseRocksdbConsumeQueue logicQueueForceSwapMapInterval logicQueueSwapMapInterval
    logicQueueSwapMapReserveFileNum logicalDiskSpaceCleanForciblyThreshold mappedFileSizeCommitLog
    mappedFileSizeConsumeQueue mappedFileSizeConsumeQueueExt mappedFileSizeTimerLog
    mappedFileSwapEnable mapperFileSizeBatchConsumeQueue maxAsyncPutMessageRequests
    maxBatchDeleteFilesNum maxChecksumRange maxConsumeQueueScan maxFilterMessageSize
    maxHaTransferByteInSecond maxHashSlotNum maxIndexNum maxLmqConsumeQueueNum maxMessageSize
    maxMsgsNumBatch maxOffsetMapSize maxRecoveryCommitlogFiles maxRocksDBIndexQueryDays
    maxSlaveResendLength maxTopicLength maxTransferBytesOnMessageInDisk
    maxTransferBytesOnMessageInMemory maxTransferCountOnMessageInDisk
    maxTransferCountOnMessageInMemory memTableFlushIntervalMs messageDelayLevel messageIndexEnable
    messageIndexSafe minInSyncReplicas offsetCheckInSlave osPageCacheBusyTimeOutMills
    preferredLeaderId pullBatchMaxMessageCount putConsumeQueueDataByFileChannel putMessageTimeout
    putMsgIndexHightWater readOnlyCommitLogStorePaths readUnCommitted realTimePersistRocksDBConfig
    recheckReputOffsetFromCq redeleteHangedFileInterval replicasPerDiskPartition
    rocksdbCQDoubleWriteEnable rocksdbCompressionType rocksdbFlushWalFrequency
    rocksdbWalFileRollingThreshold sampleCountThreshold sampleSteps
    scheduleAsyncDeliverMaxPendingLimit scheduleAsyncDeliverMaxResendNum2Blocked
    searchBcqByCacheEnable sharedByteBufferNum slaveTimeout spinLockCollisionRetreatOptimalDegree
    statRocksDBCQIntervalSec storePathBrokerIdentity storePathCommitLog storePathDLedgerCommitLog
    storePathEpochFile storePathRootDir storeType syncFlushTimeout syncFromLastFile
    syncMasterFlushOffsetWhenStartup timerColdDataCheckIntervalMs timerCongestNumEachSlot
    timerEnableCheckMetrics timerEnableRetryUntilSuccess timerFlushIntervalMs
    timerGetMessageThreadNum timerInterceptDelayLevel timerMaxDelaySec timerMetricSmallThreshold
    timerPrecisionMs timerProgressLogIntervalMs timerPutMessageThreadNum
    timerRecallToTimeWheelEnable timerRecallToTimelineEnable timerReputServiceCorePoolSize
    timerReputServiceMaxPoolSize timerReputServiceQueueCapacity timerRocksDBEnable
    timerRocksDBPrecisionMs timerRocksDBRollIntervalHours timerRocksDBRollMaxTps
    timerRocksDBRollRangeHours timerRocksDBStopScan timerRocksDBTimeExpiredMaxTps
    timerRollWindowSlot timerSkipUnknownError timerStopEnqueue timerWheelEnable
    timerWheelSnapshotFlush timerWheelSnapshotIntervalMs topicQueueLockNum totalReplicas
    transRocksDBEnable transWriteOriginTransHalfEnable transientStorePoolEnable
    transientStorePoolSize travelCqFileNumWhenGetMessage useABSLock useReentrantLockWhenPutMessage
    useSeparateStorePathForRocksdbCQ wakeCommitWhenPutMessage wakeFlushWhenPutMessage
    warmMapedFileEnable writeWithoutMmap
"""
NAMESRV = """
    clientRequestThreadPoolNums clientRequestThreadPoolQueueCapacity clusterTest configBlackList
    configStorePath defaultThreadPoolNums defaultThreadPoolQueueCapacity
    deleteTopicWithBrokerRegistration enableAllTopicList enableControllerInNamesrv enableTopicList
    kvConfigPath needWaitForService notifyMinBrokerIdChanged orderMessageEnable productEnvName
    returnOrderTopicConfigToBroker rocketmqHome scanNotActiveBrokerInterval supportActingMaster
    unRegisterBrokerQueueCapacity waitSecondsForService
"""
NETTY_CLIENT = """
    channelNotActiveInterval clientAsyncSemaphoreValue clientCallbackExecutorThreads
    clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientOnewaySemaphoreValue
    clientPooledByteBufAllocatorEnable clientSocketRcvBufSize clientSocketSndBufSize
    clientWorkerThreads connectTimeoutMillis disableCallbackExecutor disableNettyWorkerGroup
    enableReconnectForGoAway maxReconnectIntervalTimeSeconds scanAvailableNameSrv socksProxyConfig
    useTLS writeBufferHighWaterMark writeBufferLowWaterMark
"""
NETTY_SERVER = """
    bindAddress enableShutdownGracefully listenPort serverAsyncSemaphoreValue
    serverCallbackExecutorThreads serverChannelMaxIdleTimeSeconds serverNettyWorkerGroupEnable
    serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable serverSelectorThreads
    serverSocketBacklog serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads
    shutdownWaitTimeSeconds useEpollNativeSelector writeBufferHighWaterMark
    writeBufferLowWaterMark
"""
TIERED_STORE = """
    commitLogRollingInterval commitLogRollingMinimumSize maxCommitJitter objectStoreAccessKey
    objectStoreBucket objectStoreEndpoint objectStoreSecretKey ossAccessKey ossBucket ossEndpoint
    ossSecretKey readAheadBatchSizeFactorThreshold readAheadCacheEnable
    readAheadCacheExpireDuration readAheadCacheSizeThresholdRate readAheadMaxFactor
    readAheadMessageCountThreshold readAheadMessageSizeThreshold readAheadMinFactor
    recordGetMessageResult tieredBackendServiceProvider tieredMetadataServiceProvider
    tieredStorageLevel tieredStoreCommitLogMaxSize tieredStoreConsumeQueueMaxSize
    tieredStoreCrcCheckEnable tieredStoreDeleteFileEnable tieredStoreDeleteFileInterval
    tieredStoreFilePath tieredStoreFileReservedTime tieredStoreFilepath tieredStoreGroupCommit
    tieredStoreGroupCommitCount tieredStoreGroupCommitSize tieredStoreGroupCommitTimeout
    tieredStoreIndexFileMaxHashSlotNum tieredStoreIndexFileMaxIndexNum
    tieredStoreIndexFileRollingIdleInterval tieredStoreMaxFallBehindSize
    tieredStoreMaxGroupCommitCount tieredStoreMaxPendingLimit
"""
FIELDS_ONLY = """
    batchWriteKvCqSize enableTransparentRetry isBrokerContainer isEnableBatchPush
    isInBrokerContainer isScanAvailableNameSrv memTableFlushInterval timerCheckMetricsWhen
    timerEnableDisruptor timerStopDequeue timerWarmEnable transferMetadataJsonToRocksdb
    transferOffsetJsonToRocksdb
"""

# In RocketMQ's own examples of a broker.conf, though no release reads them.
EXAMPLES_ONLY = """
    abortFile storeCheckpoint storePathConsumeQueue storePathIndex
"""


@cache
def known_properties() -> frozenset[str]:
    """Every name; built when it is asked for first, as most stores are opened without it."""
    blocks = (
        AUTH,
        BROKER,
        BROKER_IDENTITY,
        MESSAGE_STORE,
        NAMESRV,
        NETTY_CLIENT,
        NETTY_SERVER,
        TIERED_STORE,
        FIELDS_ONLY,
        EXAMPLES_ONLY,
    )
    return frozenset(name for names in blocks for name in names.split())
